/* Not written yet. */
KFN void k_product_1(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_product_2(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_product_4(struct at at, CON const struct product_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
