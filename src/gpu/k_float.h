/* Not written yet. */
KFN void k_product_float(struct at at, CON const struct float_args *a, struct bufs b, SHM u32 *shm)
{
    (void)at, (void)a, (void)b, (void)shm;
}
