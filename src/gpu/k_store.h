/* Not written yet. */
KFN void k_store(struct at at, CON const struct store_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
