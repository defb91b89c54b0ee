/* Not written yet. */
KFN void k_embed(struct at at, CON const struct embed_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_norm(struct at at, CON const struct norm_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_swiglu(struct at at, CON const struct swiglu_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_combine(struct at at, CON const struct combine_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_keep(struct at at, CON const struct keep_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
