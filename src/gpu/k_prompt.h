/* Not written yet. */
KFN void k_prompt(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
