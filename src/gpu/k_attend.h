/* Not written yet. */
KFN void k_attend(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_join(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
