/* Two pairs of columns: what the first token took in all, what a step took afterwards. The phases
 * of a step add up to its wall time by how they are measured (plainsong.h), so the shares add up to
 * 100 %. */
#include "cli/profile.h"

enum { PHASES = 4 };
static const char *const NAMES[PHASES] = {"setup", "submit", "wait", "tail"};

struct part {
    double ms[PHASES], wall;
    uint64_t steps;
};

static struct part part_of(const struct ps_stats *a, const struct ps_stats *b)
{
    struct part p = {.ms = {1e3 * (b->setup_s - a->setup_s), 1e3 * (b->submit_s - a->submit_s),
                            1e3 * (b->wait_s - a->wait_s), 1e3 * (b->tail_s - a->tail_s)},
                     .steps = b->steps - a->steps};
    for (int i = 0; i < PHASES; i++)
        p.wall += p.ms[i];
    return p;
}

static void print_cell(FILE *out, const struct part *p, double ms, double over)
{
    if (p->steps && p->wall > 0)
        fprintf(out, "  %11.4f  %7.2f %%", ms / over, 100 * ms / p->wall);
    else
        fprintf(out, "  %11s  %9s", "-", "-");
}

void profile_print(FILE *out, const char *title, const struct ps_stats at[3])
{
    struct part first = part_of(&at[0], &at[1]), after = part_of(&at[1], &at[2]);
    double steps = after.steps ? (double)after.steps : 1;
    if (title)
        fprintf(out, "%s\n", title);
    fprintf(out, "         first token: %-5llu steps    after it: %llu steps\n",
            (unsigned long long)first.steps, (unsigned long long)after.steps);
    fprintf(out, "phase       ms in all      wall    ms a step       wall\n");
    for (int i = 0; i < PHASES; i++) {
        fprintf(out, "%-6s", NAMES[i]);
        print_cell(out, &first, first.ms[i], 1);
        print_cell(out, &after, after.ms[i], steps);
        fputc('\n', out);
    }
    fprintf(out, "%-6s", "wall");
    print_cell(out, &first, first.wall, 1);
    print_cell(out, &after, after.wall, steps);
    fputc('\n', out);
}
