/* Not written yet. */
KFN void k_pick(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_pick_join(struct at at, CON const struct pick_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
