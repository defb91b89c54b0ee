/* The settings that verify tries: engine options and a scene each. Those with equal options stand
 * together, so that one engine serves them. */
#ifndef PS_VERIFY_SETTING_H
#define PS_VERIFY_SETTING_H

#include "cli/verify_scene.h"

struct verify_setting {
    char name[120]; /* says everything by which it differs from the defaults */
    struct ps_engine_options o;
    enum verify_kind kind;
    u32 n; /* streams; of VERIFY_KEPT the others */
    u64 seed;
};

struct verify_bounds {
    const u32 *streams; /* to be fused: rising */
    u32 n_streams;
    u32 gen, whole;               /* whole: prompt rows of a step that hold any prompt */
    bool quick;                   /* one or two settings of each kind */
    bool slow;                    /* an emulated device: no step for each row of a long prompt */
    struct ps_engine_options set; /* what the user fixed (not 0): not varied */
    bool isas, threads;           /* whether the device has such: a GPU has neither, the emulator threads */
    u32 n_cores;
    u64 seed;
};

struct verify_settings {
    struct verify_setting *list;
    u32 n, cap;
};

/* The fixed list. */
int verify_setting_all(struct verify_settings *out, const struct verify_bounds *b, struct err *err);
/* Of it only streams together, ragged and kept. */
int verify_setting_few(struct verify_settings *out, const struct verify_bounds *b, struct err *err);
/* Three settings of one drawn engine are added. */
int verify_setting_draw(struct verify_settings *out, const struct verify_bounds *b, u64 *state,
                        struct err *err);
/* The engines of every instruction set (or the device's one), one slot, all n texts one after another. */
int verify_setting_alone(struct verify_settings *out, const struct verify_bounds *b, u32 n,
                         struct err *err);
void verify_setting_free(struct verify_settings *s);

bool verify_setting_same_engine(const struct ps_engine_options *a,
                                const struct ps_engine_options *b);

#endif
