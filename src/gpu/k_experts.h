/* Not written yet. */
KFN void k_experts_in_1(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_experts_in_2(struct at at, CON const struct experts_in_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_experts_out_1(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_experts_out_2(struct at at, CON const struct experts_out_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
