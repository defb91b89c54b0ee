#pragma once
#include <stddef.h>
typedef struct macos_zone malloc_zone_t;
size_t malloc_zone_pressure_relief(malloc_zone_t *, size_t);
