/* Not written yet. */
KFN void k_product_many(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_experts_in_many(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_experts_out_many(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
