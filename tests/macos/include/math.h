#pragma once
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_huge_val()
#define isnan(x) __builtin_isnan(x)
#define isfinite(x) __builtin_isfinite(x)
#define isinf(x) __builtin_isinf(x)
#define signbit(x) __builtin_signbit(x)
double ceil(double), sin(double), cos(double), fma(double, double, double), cbrt(double), fabs(double), floor(double), fmod(double, double), log10(double), pow(double, double), round(double), sqrt(double);
double exp(double), log(double), log2(double), fmax(double, double), fmin(double, double), ldexp(double, int), frexp(double, int *), trunc(double);
float fabsf(float), ldexpf(float, int), roundf(float), fmaxf(float, float), fminf(float, float), expf(float), logf(float), fmaf(float, float, float), sqrtf(float), ceilf(float), floorf(float), rintf(float);
double nextafter(double, double);
long lround(double), lrint(double);
long long llround(double);
