/* Not written yet. */
KFN void k_route(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
KFN void k_route_group(struct at at, CON const struct route_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
