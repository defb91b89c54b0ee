# plainsong. `make` builds build/release/plainsong and libplainsong.{a,so}; `make check` builds and runs the unit tests;
# `make install` copies binary, library, header, man page and the shipped model under PREFIX (/usr/local; DESTDIR before it).
#   CONFIG=release|debug|asan|tsan   another build beside the first        CC=gcc|clang
#   WERROR=1                         warnings are errors (the tests set it)
#   METAL=native|fake                GPU kernels in Apple's shape (PS_METAL, docs/gpu.md) and `--device metal`; native is the default on a Mac, fake is
#                                    for Linux, where a fake Metal is linked in: `make METAL=fake`, in build/metal
# `make cuda` builds libplainsong-cuda.so beside them, which `--device cuda` opens; it needs nvcc. `make install` takes it along.
# `make bench-peer MODEL=FILE.gguf [RUNS=5] [THREADS=N]` runs it beside llama.cpp, which it fetches by npm (bench/peer/run.sh).
CONFIG ?= release
comma := ,
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))

METAL ?= $(if $(filter Darwin,$(shell uname -s)),native)
B := build/$(if $(filter fake,$(METAL)),metal$(addprefix -,$(filter-out release,$(CONFIG))),$(CONFIG))$(if $(findstring clang,$(CC)),-clang)
ifneq ($(filter-out native fake,$(METAL)),)
$(error unknown METAL=$(METAL): native, fake or nothing)
endif

WARN := -Wall -Wextra -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith $(if $(WERROR),-Werror)
# No contraction and no fast-math anywhere: bits are a promise (docs/numerics.md). errno and trap flags are not part of it,
# and giving them up lets loops of fmaf and selects become vectors.
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -I$(B)/gen -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread $(WARN) $(if $(METAL),-DPS_METAL=1)
OPT_release := -O2
OPT_debug := -O0
# -g1: lines, which is what a sanitizer says; with variables they take half as long again to compile.
OPT_asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan := -O1 -g1 -fsanitize=thread
OPT := $(OPT_$(CONFIG))
ifeq ($(OPT),)
$(error unknown CONFIG=$(CONFIG): release, debug, asan or tsan)
endif
SAN := $(filter -fsanitize=%,$(OPT))
VERSION := $(shell cat VERSION 2>/dev/null || echo 0.0.0)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LIBS := -lpcre2-8 -lutf8proc -ljansson -lm -pthread
# The machine compiled for, as the compiler names it. What differs on a Mac stands in one place, here: it was written by Apple's and
# Homebrew's documentation, for GNU make 3.81 as Apple has it, and no Mac has run it.
TARGET := $(shell $(CC) -dumpmachine)
DARWIN := $(findstring -apple-,$(TARGET))
BREW := $(if $(DARWIN),$(shell brew --prefix 2>/dev/null))
ifneq ($(BREW),)
CFLAGS_ALL += -isystem $(BREW)/include
LDFLAGS += -L$(BREW)/lib
endif

# The CUDA backend is a plug-in of its own.
CUDA_C := src/device/cuda_plugin.c src/device/cuda_clock.c
# The Metal backend is for Macs (METAL=native). With METAL=fake a fake of Apple's runtime and of Metal is linked beside it, whose GPU is the emulator.
METAL_C := src/device/dev_metal.c $(wildcard src/device/metal_*.c)
FAKE_O := $(if $(filter fake,$(METAL)),$(patsubst tests/%.c,$(B)/tests/%.o,$(wildcard tests/metal/fake_*.c)))
LIBS += $(if $(filter native,$(METAL)),-framework Metal -framework Foundation -framework CoreGraphics -lobjc)
LIB_C := $(filter-out $(CUDA_C) $(if $(METAL),,$(METAL_C)),$(wildcard src/base/*.c src/model/*.c src/plan/*.c src/kernel/*.c src/gpu/*.c src/device/*.c src/engine/*.c))
CLI_C := $(wildcard src/cli/*.c)
SERVE_C := $(wildcard src/serve/*.c)
LIB_O := $(LIB_C:src/%.c=$(B)/%.o)
CLI_O := $(CLI_C:src/%.c=$(B)/%.o)
SERVE_O := $(SERVE_C:src/%.c=$(B)/%.o)
# Vector kernels: each file with its own instruction set, chosen at run time; those of another architecture are left out.
X86_C := $(addprefix src/kernel/,avx2.c avxvnni.c avx512.c avx512vnni.c)
NEON_C := $(addprefix src/kernel/,neon.c neon_dotprod.c neon_i8mm.c)
MACHINE := $(firstword $(subst -, ,$(TARGET)))
VECTOR_C := $(if $(filter x86_64,$(MACHINE)),$(X86_C),$(if $(filter aarch64 arm64,$(MACHINE)),$(NEON_C)))
LIB_O := $(filter-out $(patsubst src/%.c,$(B)/%.o,$(filter-out $(VECTOR_C),$(X86_C) $(NEON_C))),$(LIB_O))
LIB_O += $(FAKE_O)
# Those that take longest come first: begun last, one of them is what two cores wait for in the end.
LONG_O := $(filter $(addprefix $(B)/,gpu/emu_call.o $(patsubst %.c,kernel/%.o,$(notdir $(VECTOR_C))) kernel/scalar.o),$(LIB_O))
LIB_O := $(LONG_O) $(filter-out $(LONG_O),$(LIB_O))
TEST_C := $(filter-out $(if $(FAKE_O),,tests/test_metal%),$(wildcard tests/test_*.c))
TESTS := $(TEST_C:tests/%.c=$(B)/tests/%)

# The shared library: its file, the name that programs ask the loader for, and how the linker is told so.
SHARED := libplainsong$(if $(DARWIN),.dylib,.so)
SONAME := libplainsong$(if $(DARWIN),.0.dylib,.so.0)
SHARED_FLAGS := $(if $(DARWIN),-dynamiclib -install_name @rpath/$(SONAME),-shared -Wl$(comma)-soname$(comma)$(SONAME))

all: $(B)/plainsong $(B)/$(SHARED) $(B)/libplainsong.a
# What a compiler can say of all sources without a linker (tests/macos/compile.sh).
objects: $(LIB_O) $(CLI_O) $(SERVE_O)

$(B)/%.o: src/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(FLAGS_$(*D)) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/tests/metal/%.o: tests/metal/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) -MMD -MP -c $< -o $@

# With the sanitizers -O3 takes ten times as long to compile as -O1 and finds no more.
O3 := $(if $(filter release,$(CONFIG)),-O3)
# -g1 (lines, no variables): to follow variables through bodies this long takes gcc longer than to compile them.
FLAGS_kernel := $(O3)
# EMU_FLAGS: what else the emulator is compiled with, in a build that stays on its machine (test.sh's of Metal): -march=native takes a fifth off, the same bits.
FLAGS_gpu := $(O3) $(EMU_FLAGS)
# The emulator says itself what orders two lanes' memory; what it does in between is not for TSan to judge.
$(if $(filter tsan,$(CONFIG)),$(B)/gpu/emu.o $(B)/gpu/fiber.o: FLAGS_gpu += -fno-sanitize=thread -DFIBER_TSAN=1)
$(B)/engine/sample.o $(B)/engine/logprob.o: FLAGS_engine := $(O3)
$(B)/kernel/avx2.o: FLAGS_kernel := $(O3) -g1 -march=x86-64-v3
$(B)/kernel/avxvnni.o: FLAGS_kernel := $(O3) -g1 -march=x86-64-v3 -mavxvnni
$(B)/kernel/avx512.o: FLAGS_kernel := $(O3) -g1 -march=x86-64-v4 -mprefer-vector-width=512
$(B)/kernel/avx512vnni.o: FLAGS_kernel := $(O3) -g1 -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512
$(B)/kernel/neon_dotprod.o: FLAGS_kernel := $(O3) -g1 -march=armv8.2-a+dotprod
$(B)/kernel/neon_i8mm.o: FLAGS_kernel := $(O3) -g1 -march=armv8.2-a+dotprod+i8mm
# Beside a sanitizer the vector bodies are the release build's own objects: to compile each with it takes a minute, and
# what they read and write past the end is caught by the unmapped pages of tests/test_{products,rows,attend}.c. So they are with
# METAL=fake, which changes nothing in them.
ifneq ($(SAN)$(filter fake,$(METAL)),)
$(VECTOR_C:src/%.c=$(B)/%.o): $(B)/%.o: build/release/%.o
	@mkdir -p $(@D)
	cp $< $@
$(VECTOR_C:src/%.c=build/release/%.o): FORCE
	@$(MAKE) --no-print-directory -s CONFIG=release B=build/release CC=gcc METAL= $@
endif

# Version and commit, in a file that changes only when they do.
$(B)/gen/version.h: FORCE
	@mkdir -p $(@D)
	@printf '#define PS_VERSION "%s"\n#define PS_COMMIT "%s"\n' '$(VERSION)' '$(COMMIT)' | cmp -s - $@ || \
	printf '#define PS_VERSION "%s"\n#define PS_COMMIT "%s"\n' '$(VERSION)' '$(COMMIT)' > $@
$(B)/cli/version.o $(B)/engine/api.o: $(B)/gen/version.h
$(B)/cli/version.o: FLAGS_cli += -include $(B)/gen/version.h
$(B)/engine/api.o: FLAGS_engine += -include $(B)/gen/version.h
FORCE:

# A sum over the headers that program and plug-in share: they refuse each other when it differs.
$(B)/gen/gpu_abi.h: src/gpu/args.h src/gpu/gpu.h src/gpu/layout.h src/device/gpu_backend.h
	@mkdir -p $(@D)
	printf '#define PS_GPU_ABI %su\n' "$$(cat $^ | cksum | cut -d ' ' -f 1)" > $@
$(B)/device/dev_cuda.o: $(B)/gen/gpu_abi.h
$(B)/device/dev_cuda.o: FLAGS_device += -include $(B)/gen/gpu_abi.h

# The template worker's Python text becomes a C array.
$(B)/gen/worker_py.h: src/model/worker.py
	@mkdir -p $(@D)
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(B)/model/template.o: $(B)/gen/worker_py.h

# So does the page.
$(B)/gen/page_html.h: web/index.html
	@mkdir -p $(@D)
	{ echo 'static const char page_html[] = {'; od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'; echo '0};'; } > $@
$(B)/serve/pages.o: $(B)/gen/page_html.h

# And the kernels' text for Apple's compiler.
METAL_TEXT := tools/metal_text.sh src/base/exact.h $(wildcard src/gpu/*.h)
$(B)/gen/kernels.metal: $(METAL_TEXT)
	@mkdir -p $(@D)
	sh tools/metal_text.sh > $@.new
	cmp -s $@.new $@ || cp $@.new $@
$(B)/gen/metal_text.h: $(B)/gen/kernels.metal
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(B)/device/metal_text.o: $(B)/gen/metal_text.h

# What the program and the tests link: every symbol. What others link shows plainsong.h's symbols only.
$(B)/internal.a: $(LIB_O)
	rm -f $@; ar rcs $@ $^
# The server is part of the program, not of the library, and so is what it needs.
SERVE_LIBS := -lmicrohttpd
$(B)/serve.a: $(SERVE_O)
	rm -f $@; ar rcs $@ $^
$(B)/libplainsong.a: $(LIB_O)
	ld -r -o $(B)/plainsong-all.o $^ # Apple's makes hidden names local by this alone
	$(if $(DARWIN),,objcopy --localize-hidden $(B)/plainsong-all.o)
	rm -f $@; ar rcs $@ $(B)/plainsong-all.o; rm -f $(B)/plainsong-all.o
$(B)/$(SHARED): $(LIB_O)
	$(CC) $(SHARED_FLAGS) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)
	ln -sf $(@F) $(@D)/$(SONAME)
$(B)/plainsong: $(CLI_O) $(B)/serve.a $(B)/internal.a
	$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(SERVE_LIBS) $(LIBS)

$(B)/tests/%: tests/%.c $(B)/serve.a $(B)/internal.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests $(OPT) $(CFLAGS) $(LDFLAGS) -MMD -MP -o $@ $< $(B)/serve.a $(B)/internal.a -lcmocka $(SERVE_LIBS) $(LIBS)
tests: $(TESTS)

# Tests of kernels that run that text on the emulator's fibers (tests/metal/msl_run.cc), by clang++: in a METAL build. The shim's keyword would be
# put into the attribute of that name; loops stay loops, so that it takes a third of the time. tests/metal/msl.sh reads the code in between.
MSL_TESTS := $(addprefix $(B)/msl/test_gpu_,products few rows attend router selftest golden)
MSL_FLAGS := -std=c++14 -D__METAL_VERSION__=300 -isystem tests/metal/shim -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffp-contract=off -fno-math-errno \
	-Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unknown-attributes -Wno-unused-parameter -Wno-unused-function -Wno-pass-failed
$(B)/msl/run.ll: tests/metal/msl_run.cc $(B)/gen/kernels.metal $(wildcard tests/metal/shim/*) Makefile
	@mkdir -p $(@D)
	sed -e 's/ \[\[threadgroup(0)\]\]//' -e 's/unroll(full)/unroll(disable)/' $(B)/gen/kernels.metal > $(B)/gen/kernels.cc
	clang++ $(MSL_FLAGS) -O1 -g1 -fPIC -DMSL_TEXT='"$(B)/gen/kernels.cc"' -I. -S -emit-llvm $< -o $@
$(B)/msl/run.o: $(B)/msl/run.ll
	clang++ -O1 -fPIC -Wno-override-module -Xclang -disable-llvm-passes -c $< -o $@ # its passes made run.ll
$(B)/msl/%: tests/%.c $(B)/msl/run.o $(B)/internal.a
	$(CC) $(CFLAGS_ALL) -Itests $(OPT) $(CFLAGS) -MMD -MP -o $@ $< $(B)/msl/run.o $(B)/internal.a -lcmocka $(LIBS)
msl: $(MSL_TESTS)

# The program with one of its files, PLANTED, edited (tests/metal/plant.sh): what the planted object defines, the archive is not asked for.
ifneq ($(PLANTED),)
$(PLANTED:.c=): $(PLANTED) $(CLI_O) $(B)/serve.a $(B)/internal.a
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) -c -o $@.o $(PLANTED)
	$(CC) $(LDFLAGS) -o $@ $@.o $(CLI_O) $(B)/serve.a $(B)/internal.a $(SERVE_LIBS) $(LIBS)
endif

# The plug-in: kernels by nvcc, the host's part by cc; the CUDA runtime comes in whole, libcuda is found at run time. Machine code for
# Hopper (`make cuda CUDA_GENERIC=`: for it alone); for every other GPU from compute capability 8.0 on the driver translates PTX.
# Objects end in .obj: the house's look at variables (tools/layers.sh) is for our own, and nvcc makes some.
NVCC := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
# Where the toolkit's headers and libraries lie is asked of nvcc itself (its NAME= lines of a dry run): on the PATH it may be a script.
nvcc_says = $(shell echo | $(NVCC) --dryrun -x cu -c -o /dev/null - 2>&1 | sed -n 's/"//g; s/^\#\$$ $(1)=//p')
CUDA_INCLUDES = $(patsubst -I%,-isystem %,$(call nvcc_says,INCLUDES))
CUDA_LIBRARIES = $(call nvcc_says,LIBRARIES)
CUDA_HOPPER := -gencode arch=compute_90a,code=sm_90a
CUDA_GENERIC := -gencode arch=compute_80,code=compute_80
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -Isrc -Xcompiler -fPIC,-fvisibility=hidden,-fno-threadsafe-statics,-fno-exceptions
CUDA_PARTS := 5 4 2 6 1 0 3
$(CUDA_PARTS:%=$(B)/cuda/cuda_entry_%.obj): $(B)/cuda/cuda_entry_%.obj: src/device/cuda_entry.cu src/device/cuda_entry.h $(wildcard src/gpu/*.h) src/base/exact.h Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -DCUDA_PART=$* $(CUDA_HOPPER) $(CUDA_GENERIC) $(NVCCFLAGS) -c -o $@ $<
CUDA_CO := $(CUDA_C:src/device/%.c=$(B)/cuda/%.obj)
$(CUDA_CO): $(B)/cuda/%.obj: src/device/%.c $(B)/gen/gpu_abi.h Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) $(CUDA_INCLUDES) -include $(B)/gen/gpu_abi.h -MMD -MP -MF $(@:.obj=.d) -c $< -o $@
$(B)/libplainsong-cuda.so: $(CUDA_PARTS:%=$(B)/cuda/cuda_entry_%.obj) $(CUDA_CO) $(B)/base/base.o
	$(CC) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL -Wl,--no-undefined -Wl,--as-needed $(LDFLAGS) -o $@ $^ \
	$(CUDA_LIBRARIES) -lcudart_static -ldl -lrt -lm -pthread
ifneq ($(NVCC),)
cuda: $(B)/libplainsong-cuda.so
else
cuda:
	@echo "make cuda: nvcc is not found, neither on the PATH nor in /usr/local/cuda/bin; it comes with NVIDIA's CUDA toolkit (13)" >&2; exit 1
endif

# What bench/h200.sh takes to a machine with a GPU and nothing else: stripped program, plug-in, and the libraries that are not the C library's.
KIT := build/dev
$(B)/launches: bench/launches.c $(B)/internal.a
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) -MMD -MP -o $@ $< $(B)/internal.a $(LIBS)
h200-kit: $(B)/plainsong $(B)/launches cuda
	rm -rf $(KIT)
	mkdir -p $(KIT)/lib
	for file in plainsong launches libplainsong-cuda.so; do strip -o $(KIT)/$$file $(B)/$$file || exit 1; done
	ldd $(B)/plainsong | awk '$$2 == "=>" && $$3 ~ /^\// { print $$3 }' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)[.]so' | xargs cp -Lt $(KIT)/lib
	@du -sk $(KIT) | awk '{ print "h200-kit: " $$1 " kB in " $$2; exit $$1 > 40000 }'

# Tests that need no library: for a machine that is only emulated (tests/arm). Their cmocka is tests/arm/cmocka.h, and files
# there stand for the tokenizer and for the opening of CUDA's plug-in.
BARE_O := $(filter-out $(B)/model/prompt.o $(B)/model/template.o $(B)/model/token%.o $(B)/device/dev_cuda.o,$(LIB_O)) \
	$(B)/bare/no_tokenizer.o $(B)/bare/no_cuda.o
BARE := $(addprefix $(B)/bare/,test_exact test_products test_rows test_attend test_golden test_emu list_isas)
$(B)/bare/no_%.o: tests/arm/no_%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) -MMD -MP -c $< -o $@
$(B)/bare/%: tests/%.c $(BARE_O)
	$(CC) $(CFLAGS_ALL) -Itests/arm -Itests $(OPT) $(CFLAGS) $(LDFLAGS) -MMD -MP -o $@ $< $(BARE_O) -lm -pthread
$(B)/bare/list_isas: tests/arm/list_isas.c $(BARE_O)
	$(CC) $(CFLAGS_ALL) $(OPT) $(CFLAGS) $(LDFLAGS) -MMD -MP -o $@ $< $(BARE_O) -lm -pthread
bare: $(BARE)

# The kernels' text as Apple's compiler gets it: xcrun -sdk macosx metal -c FILE.
metal-text: $(B)/gen/kernels.metal
	cp $< $(or $(FILE),plainsong.metal)

check: all tests
	@sh test.sh unit

PREFIX ?= /usr/local
INSTALLED := bin/plainsong lib/libplainsong.a lib/$(SHARED) lib/$(SONAME) lib/libplainsong-cuda.so lib/pkgconfig/plainsong.pc \
	include/plainsong.h share/man/man1/plainsong.1 share/plainsong/plainsong-tiny-q4_0.gguf
install: all
	for dir in bin lib/pkgconfig include share/man/man1 share/plainsong; do install -d "$(DESTDIR)$(PREFIX)/$$dir"; done
	install -m 755 $(B)/plainsong "$(DESTDIR)$(PREFIX)/bin/"
	install -m 644 $(B)/libplainsong.a "$(DESTDIR)$(PREFIX)/lib/"
	install -m 755 $(B)/$(SHARED) "$(DESTDIR)$(PREFIX)/lib/$(SONAME)"
	ln -sf $(SONAME) "$(DESTDIR)$(PREFIX)/lib/$(SHARED)"
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@RPATH@|$(if $(DARWIN),-Wl$(comma)-rpath$(comma)$${libdir})|; s|@LIBS@|$(if $(BREW),-L$(BREW)/lib )$(LIBS)|; s| *$$||' plainsong.pc.in > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/plainsong.pc"
	if [ -f $(B)/libplainsong-cuda.so ]; then install -m 755 $(B)/libplainsong-cuda.so "$(DESTDIR)$(PREFIX)/lib/"; fi
	install -m 644 include/plainsong.h "$(DESTDIR)$(PREFIX)/include/"
	install -m 644 docs/plainsong.1 "$(DESTDIR)$(PREFIX)/share/man/man1/"
	install -m 644 models/plainsong-tiny-q4_0.gguf "$(DESTDIR)$(PREFIX)/share/plainsong/"
uninstall:
	for file in $(INSTALLED); do rm -f "$(DESTDIR)$(PREFIX)/$$file"; done

bench-peer: all
	@BUILD=$(B) RUNS=$(RUNS) THREADS=$(THREADS) sh bench/peer/run.sh $(MODEL)

clean:
	rm -rf build

.PHONY: all objects tests msl metal-text cuda h200-kit bare check install uninstall bench-peer clean
-include $(MSL_TESTS:=.d) $(LIB_O:.o=.d) $(CLI_O:.o=.d) $(SERVE_O:.o=.d) $(TESTS:=.d) $(BARE:=.d) $(CUDA_CO:.obj=.d) $(B)/launches.d
