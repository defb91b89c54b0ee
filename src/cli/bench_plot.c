/* tok/s over the number of streams as an SVG written by hand: both paths with bars from least to
 * most, and what reading alone would allow. The streams' axis is logarithmic, the other one starts
 * at 0. */
#include "cli/bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 800, HEIGHT = 500, LEFT = 74, RIGHT = 150, TOP = 76, BOTTOM = 60 };

struct plot {
    const struct bench_result *r;
    FILE *out;
    double top;    /* tok/s at the upper edge */
    double unit;   /* between two lines */
    double lo, hi; /* log2 of the least and the most streams */
};

static double x_of(const struct plot *p, u32 streams)
{
    double span = p->hi > p->lo ? p->hi - p->lo : 1,
           at = p->hi > p->lo ? log2(streams) - p->lo : 0.5;
    return LEFT + 20 + at / span * (WIDTH - LEFT - RIGHT - 40);
}

static double y_of(const struct plot *p, double tok_s)
{
    return HEIGHT - BOTTOM - tok_s / p->top * (HEIGHT - TOP - BOTTOM);
}

/* Text of a file, made safe for XML: what is not plain ASCII comes out as '?'. */
static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else
            fputc((u8)*text >= 0x20 && (u8)*text < 0x7F ? *text : '?', out);
    }
}

/* 1, 2 or 5 times a power of ten: four to ten lines. */
static void scale(struct plot *p)
{
    double most = 0;
    p->lo = INFINITY;
    p->hi = 0;
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        most = fmax(most, fmax(bench_figure(s, FIG_TOK_S).max, bench_roofline(p->r, s)));
        p->lo = fmin(p->lo, log2(s->streams));
        p->hi = fmax(p->hi, log2(s->streams));
    }
    p->unit = pow(10, floor(log10(fmax(most, 1e-3) / 4)));
    if (most / p->unit > 20)
        p->unit *= 5;
    else if (most / p->unit > 8)
        p->unit *= 2;
    p->top = p->unit * ceil(most / p->unit);
}

static void put_axes(const struct plot *p)
{
    FILE *out = p->out;
    for (u32 i = 0; i * p->unit <= p->top * 1.0001; i++) {
        double y = y_of(p, i * p->unit);
        fprintf(out, "<path d=\"M%d %.1fH%d\" stroke=\"%s\"/>\n", LEFT, y, WIDTH - RIGHT,
                i ? "#e4e4e4" : "#444");
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n", LEFT - 8,
                y + 4.5, p->unit < 1 ? 1 : 0, i * p->unit);
    }
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        if (s->path != PATH_ENGINE)
            continue;
        double x = x_of(p, s->streams);
        fprintf(out, "<path d=\"M%.1f %dv5\" stroke=\"#444\"/>\n", x, HEIGHT - BOTTOM);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%u</text>\n", x,
                HEIGHT - BOTTOM + 21, s->streams);
    }
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">streams decoding at once (B)</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
    fprintf(out,
            "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">tokens per "
            "second, all "
            "streams</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

/* A line through the series of a path, a bar from least to most at each point. */
static void put_path(const struct plot *p, enum bench_path path, const char *colour, double shift)
{
    const char *join = "M";
    fprintf(p->out, "<g stroke=\"%s\" fill=\"none\" stroke-width=\"2\">\n<path d=\"", colour);
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        if (s->path != path)
            continue;
        fprintf(p->out, "%s%.1f %.1f", join, x_of(p, s->streams) + shift,
                y_of(p, bench_figure(s, FIG_TOK_S).median));
        join = "L";
    }
    fputs("\"/>\n", p->out);
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        struct bench_spread t = bench_figure(s, FIG_TOK_S);
        double x = x_of(p, s->streams) + shift;
        if (s->path == path)
            fprintf(p->out,
                    "<path d=\"M%.1f %.1fV%.1fm-5 0h10M%.1f %.1fh10\"/><circle cx=\"%.1f\" "
                    "cy=\"%.1f\" r=\"3.5\" "
                    "fill=\"%s\"/>\n",
                    x, y_of(p, t.min), y_of(p, t.max), x - 5, y_of(p, t.min), x, y_of(p, t.median),
                    colour);
    }
    fputs("</g>\n", p->out);
}

/* The engine's medians as numbers, above the points of both paths. */
static void put_values(const struct plot *p, const char *colour)
{
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        struct bench_spread t = bench_figure(s, FIG_TOK_S);
        if (s->path == PATH_ENGINE)
            fprintf(p->out,
                    "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"12\" fill=\"%s\" stroke=\"#fff\" "
                    "stroke-width=\"3\" paint-order=\"stroke\">%.*f</text>\n",
                    x_of(p, s->streams) - 4, y_of(p, t.max) - 9, colour, t.median < 10 ? 1 : 0, t.median);
    }
}

static void put_roof(const struct plot *p)
{
    const char *join = "M";
    fputs("<path fill=\"none\" stroke=\"#777\" stroke-width=\"2\" stroke-dasharray=\"7 5\" d=\"",
          p->out);
    for (u32 i = 0; i < p->r->n_series; i++) {
        const struct bench_series *s = &p->r->series[i];
        if (s->path != PATH_DEVICE)
            continue;
        fprintf(p->out, "%s%.1f %.1f", join, x_of(p, s->streams), y_of(p, bench_roofline(p->r, s)));
        join = "L";
    }
    fputs("\"/>\n", p->out);
}

static void put_legend(const struct plot *p)
{
    static const struct {
        const char *text, *more, *colour, *dash;
    } LINES[] = {
        {"reading alone", "(roofline)", "#777", "7 5"},
        {"device", "steps in a loop", "#d9730d", ""},
        {"engine", "as streams see it", "#1f5fbf", ""},
    };
    for (u32 i = 0; i < COUNT(LINES); i++) {
        int x = WIDTH - RIGHT + 12, y = TOP + 10 + 46 * (int)i;
        fprintf(
            p->out,
            "<path d=\"M%d %dh26\" stroke=\"%s\" stroke-width=\"3\" stroke-dasharray=\"%s\"/>\n", x,
            y, LINES[i].colour, LINES[i].dash);
        fprintf(p->out,
                "<text x=\"%d\" y=\"%d\">%s</text>\n<text x=\"%d\" y=\"%d\" font-size=\"12\" "
                "fill=\"#555\">%s</text>\n",
                x + 32, y + 4, LINES[i].text, x, y + 21, LINES[i].more);
    }
    fprintf(p->out,
            "<text x=\"%d\" y=\"%d\" font-size=\"12\" fill=\"#555\">bars: least to</text>\n",
            WIDTH - RIGHT + 12, TOP + 158);
    fprintf(p->out,
            "<text x=\"%d\" y=\"%d\" font-size=\"12\" fill=\"#555\">most of %u runs</text>\n",
            WIDTH - RIGHT + 12, TOP + 173, p->r->setup->runs);
}

static void put_title(const struct plot *p)
{
    fprintf(p->out, "<text x=\"%d\" y=\"30\" font-size=\"19\" font-weight=\"bold\">", LEFT);
    char name[64];
    snprintf(name, sizeof name, "%.60s", p->r->model.name);
    put_text(p->out, name);
    fprintf(p->out, ", %u layers, %.2f GB</text>\n<text x=\"%d\" y=\"52\" fill=\"#333\">",
            p->r->model.n_layers, 1e-9 * (double)p->r->model.file_bytes, LEFT);
    if (p->r->machine->pool) { /* the CPU computes */
        put_text(p->out, p->r->machine->cpu);
        fputs(", ", p->out);
    }
    put_text(p->out, p->r->stats.isa);
    if (p->r->stats.n_threads)
        fprintf(p->out, ", %u thread%s", p->r->stats.n_threads,
                p->r->stats.n_threads == 1 ? "" : "s");
    if (p->r->machine->peak_gb_s > 0)
        fprintf(p->out, ", %.1f GB/s", p->r->machine->peak_gb_s);
    fprintf(p->out, "; commit %s</text>\n", p->r->commit);
}

void bench_plot(const struct bench_result *r, FILE *out)
{
    struct plot p = {.r = r, .out = out};
    scale(&p);
    fprintf(p.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"14\" fill=\"#111\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_title(&p);
    put_axes(&p);
    if (r->machine->peak_gb_s > 0)
        put_roof(&p);
    put_path(&p, PATH_DEVICE, "#d9730d", 4);
    put_path(&p, PATH_ENGINE, "#1f5fbf", -4);
    put_values(&p, "#1f5fbf");
    put_legend(&p);
    fputs("</svg>\n", p.out);
}
