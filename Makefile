# weft: `make demo` and `make test` do everything; `make help` lists the rest.
#
# Sources are found by folder: src/MODULE/*.c once, src/MODULE/cpu/*.c once per variant (src/base/variant.h),
# src/MODULE/cuda/*.cu and src/MODULE/cuda/*/*.cu by nvcc.
# BUILD and SAN make side builds:  make BUILD=build/asan SAN=address,undefined test

BUILD ?= build
SAN ?=
PREFIX ?= /usr/local
DESTDIR ?=
PYTHON ?= /usr/bin/python3
VERSION := $(shell sed -n 's/^\#define WF_VERSION "\(.*\)"/\1/p' include/weft/base.h)

# All cores unless -j says otherwise (nvcc takes minutes); not for several goals, as in `make clean all`.
ifeq ($(MAKELEVEL:0=)$(word 2,$(MAKECMDGOALS))$(filter -j% j%,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS")),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

CC ?= gcc
OPT ?= -O2
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wno-psabi
CFLAGS += -std=gnu11 $(OPT) -g $(WARN) $(WERROR) -fPIC -fvisibility=hidden -ffp-contract=off -pthread
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc
LDLIBS += -ljansson -lz -lm -pthread
KERNEL_FLAGS := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS += -fsanitize=$(SAN)
endif

# CUDA: built when nvcc is there (NVCC= leaves it out, CUDA_ARCH=90a builds for that card alone, 80/90 has later cards run the code of sm_80); each cuda/ folder has an absent.c for builds without it.
ifeq ($(SAN),)
NVCC ?= $(shell command -v nvcc 2>/dev/null)
endif
CUDA_ARCH ?= 80 90a
NVCC_FLAGS := -std=c++17 -O3 -lineinfo $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(word 1,$(subst /, ,$(a))),code=sm_$(lastword $(subst /, ,$(a)))) \
              -Xcompiler -fPIC,-Wall,-fvisibility=hidden

# variant = instruction set and type
ifeq ($(shell uname -m),x86_64)
VARIANTS := avx512_f32 avx2_f32 base_f32 base_f64
else
VARIANTS := base_f32 base_f64
endif
flags_avx512_f32 := -DWF_REAL=float -DWF_LANES=16 -march=x86-64-v4 -mprefer-vector-width=512
flags_avx2_f32 := -DWF_REAL=float -DWF_LANES=8 -march=x86-64-v3
flags_base_f32 := -DWF_REAL=float -DWF_LANES=4
flags_base_f64 := -DWF_REAL=double -DWF_LANES=2 -DWF_REAL_IS_DOUBLE

MODULES := base tensor nn graph data zoo align models flow generators eval report
# The .cu files of modules: those of cuda/ and of the folders in it.
cuda_sources = $(wildcard $(1:%=src/%/cuda/*.cu) $(1:%=src/%/cuda/*/*.cu))
LIB_SRC := $(wildcard $(MODULES:%=src/%/*.c))
CPU_SRC := $(wildcard $(MODULES:%=src/%/cpu/*.c))
CLI_SRC := $(wildcard src/cli/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(foreach v,$(VARIANTS),$(CPU_SRC:%.c=$(BUILD)/%.$(v).o))
ifneq ($(NVCC),)
CUDA_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(call cuda_sources,$(MODULES)))
LDLIBS += -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt -lstdc++
else
CUDA_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(MODULES:%=src/%/cuda/*_absent.c)))
endif
LIB_OBJ += $(CUDA_OBJ)
# libcurl: used when pkg-config finds it (CURL= leaves it out); a curl/ folder has an absent.c for builds without it.
CURL ?= $(shell pkg-config --exists libcurl 2>/dev/null && echo yes)
ifneq ($(CURL),)
LIB_OBJ += $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(MODULES:%=src/%/curl/*_curl.c)))
CPPFLAGS += $(shell pkg-config --cflags libcurl)
LDLIBS += $(shell pkg-config --libs libcurl)
else
LIB_OBJ += $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(MODULES:%=src/%/curl/*_absent.c)))
endif
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(wildcard tests/unit/test_*.c tests/prop/test_*.c)
TESTS := $(TEST_SRC:%.c=$(BUILD)/%)
# Kernels of these modules run in tests without a GPU; under a sanitizer, which does not know fibers, they do not.
EMULATED := base tensor models
EMULATED_OBJ := $(patsubst src/%.cu,$(BUILD)/emulated/%.o,$(call cuda_sources,$(EMULATED))) $(BUILD)/emulated/emulator.o
UNEMULATED_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(patsubst %,src/%/cuda/*_absent.c,$(filter-out $(EMULATED),$(MODULES)))))
ifeq ($(SAN),)
EMULATED_TESTS := $(addprefix $(BUILD)/emulated/,test_cuda_field test_cuda_lstar test_cuda_nodes test_cuda_ops)
endif
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS := $(FUZZ_SRC:%.c=$(BUILD)/%)

all: $(BUILD)/weft $(BUILD)/libweft.a $(BUILD)/libweft.so

help:
	@echo "make            the program $(BUILD)/weft, libweft.a, libweft.so"
	@echo "make demo       train, sample and judge networks in minutes; leaves runs/demo/report.html"
	@echo "make test       unit, property and command-line tests; kernels without a GPU"
	@echo "make test-oracle  comparisons with PyTorch, SciPy and scikit-learn"
	@echo "make check      layering of includes, formatting, warnings of gcc and clang"
	@echo "make check-full sanitizers, fuzz smoke, long property tests, the report in a browser"
	@echo "make bench      speed beside PyTorch in one run"
	@echo "make install    PREFIX=$(PREFIX)"

# --- packages: each target asks only for its own -------------------------------------------------
need-lib:
	@tools/need.sh gcc zlib1g-dev libjansson-dev
need-test: need-lib
	@tools/need.sh libcmocka-dev python3 g++
need-oracle: need-lib
	@tools/need.sh python3-torch python3-scipy python3-sklearn
need-bench: need-oracle # without OpenBLAS PyTorch multiplies with the reference BLAS, and losing to that says nothing
	@tools/need.sh libopenblas0-pthread
need-check:
	@tools/need.sh clang clang-format
need-browser:
	@tools/need.sh chromium
.PHONY: all help demo test test-oracle test-programs check check-full bench install clean format \
        need-lib need-test need-oracle need-bench need-check need-browser fuzz-smoke layering formatting test-threads

# --- the library and the program ----------------------------------------------------------------
$(LIB_OBJ) $(CLI_OBJ): | need-lib

$(BUILD)/src/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

define variant_rule
$(BUILD)/src/%.$(1).o: src/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(KERNEL_FLAGS) -DWF_VARIANT=$(1) $$(flags_$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach v,$(VARIANTS),$(eval $(call variant_rule,$(v))))

# Draws and solver states have the same bits as on the CPU, which does not contract either.
$(BUILD)/src/flow/cuda/%.cu.o: NVCC_FLAGS += -fmad=false

$(BUILD)/src/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(CPPFLAGS) $(NVCC_FLAGS) -MMD -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/src/cli/demo_recipe.o: recipes/demo.conf # which the assembler takes in

$(BUILD)/libweft.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libweft.so: $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,libweft.so.0 $(LDFLAGS) $^ $(LDLIBS) -o $@
	@ln -sf libweft.so $(BUILD)/libweft.so.0 # the name that programs look for

$(BUILD)/weft: $(CLI_OBJ) $(BUILD)/libweft.a
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

# --- tests --------------------------------------------------------------------------------------
$(TESTS): | need-test
$(BUILD)/tests/%: tests/%.c $(BUILD)/libweft.a $(wildcard tests/*.h)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP -Wno-missing-prototypes $< $(BUILD)/libweft.a $(LDFLAGS) -lcmocka $(LDLIBS) -o $@

# The .cu files as C++ (tests/emulator): preprocessed, launches and PTX translated, compiled as nvcc has the host's part compiled.
EMULATED_FLAGS := -std=c++17 -Wall -Wno-unknown-pragmas $(WERROR) -g1
$(EMULATED_TESTS) $(EMULATED_OBJ) $(UNEMULATED_OBJ): | need-test
$(BUILD)/emulated/%.o: src/%.cu tests/emulator/translate.py
	@mkdir -p $(@D)
	@$(CXX) $(CPPFLAGS) -std=c++17 -D__CUDACC__ -Itests/emulator -include ptx.h -MMD -MP -MF $(@:.o=.d) -MT $@ -E -x c++ $< -o $(@:.o=.cu)
	@tests/emulator/translate.py <$(@:.o=.cu) >$(@:.o=.ii)
	$(CXX) $(EMULATED_FLAGS) -O1 -c $(@:.o=.ii) -o $@

$(BUILD)/emulated/emulator.o: tests/emulator/emulator.cpp $(wildcard tests/emulator/*.h)
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -Wextra -Wshadow -O3 -Itests/emulator -c $< -o $@

$(BUILD)/emulated/test_%: tests/unit/test_%.c $(filter-out $(CUDA_OBJ),$(LIB_OBJ)) $(UNEMULATED_OBJ) $(EMULATED_OBJ) $(wildcard tests/*.h)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -Wno-missing-prototypes $< $(filter %.o,$^) $(LDFLAGS) -lcmocka $(LDLIBS) -lstdc++ -o $@

test-programs: $(TESTS) $(EMULATED_TESTS)

test: all $(TESTS) $(EMULATED_TESTS)
	@BUILD=$(BUILD) tests/run.sh

test-oracle: all need-oracle
	@BUILD=$(BUILD) PYTHON=$(PYTHON) tests/oracle/run.sh

$(BUILD)/tests/fuzz/%: tests/fuzz/%.c tests/fuzz/driver.c $(BUILD)/libweft.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes $< tests/fuzz/driver.c $(BUILD)/libweft.a $(LDFLAGS) $(LDLIBS) -o $@

fuzz-smoke: $(FUZZERS)
	@for f in $(FUZZERS); do echo "fuzz $$f"; $$f tests/golden || exit 1; done

layering:
	@tools/layering.py

formatting: need-check
	@clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

# Programs that use threads; the rest would only be slower under the thread sanitizer.
THREAD_TESTS := $(wildcard tests/unit/test_pool.c tests/unit/test_match.c tests/unit/test_draw.c tests/unit/test_flow.c tests/unit/test_field.c \
                  tests/prop/test_zoo_train.c)
test-threads: $(THREAD_TESTS:%.c=$(BUILD)/%)
	@for test in $^; do echo "$$test"; $$test >$(BUILD)/thread.log 2>&1 || { tail -n 40 $(BUILD)/thread.log; exit 1; }; done

check: need-check layering formatting
	@$(MAKE) --no-print-directory BUILD=build/gcc-strict WERROR=-Werror CC=gcc all
	@$(MAKE) --no-print-directory BUILD=build/clang-strict WERROR=-Werror CC=clang NVCC= all # nvcc does not ask clang

check-full: need-test need-browser
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory BUILD=build/asan SAN=address,undefined OPT=-O1 test fuzz-smoke
	@$(MAKE) --no-print-directory BUILD=build/tsan SAN=thread OPT=-O1 all test-threads
	@BUILD=build/tsan tests/cli/test_run.sh
	@WEFT_LONG_TESTS=1 $(MAKE) --no-print-directory test
	@tests/browser.sh

format:
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

# --- use ----------------------------------------------------------------------------------------
demo: $(BUILD)/weft
	@$(BUILD)/weft demo

bench: $(BUILD)/weft need-bench
	@BUILD=$(BUILD) PYTHON=$(PYTHON) bench/run.sh

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/weft $(DESTDIR)$(PREFIX)/share/weft/recipes
	install -m 755 $(BUILD)/weft $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(BUILD)/libweft.a $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $(BUILD)/libweft.so $(DESTDIR)$(PREFIX)/lib/libweft.so.$(VERSION)
	ln -sf libweft.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libweft.so.0
	ln -sf libweft.so.0 $(DESTDIR)$(PREFIX)/lib/libweft.so
	install -m 644 include/weft/* $(DESTDIR)$(PREFIX)/include/weft/
	cd recipes && find . -name '*.conf' -o -name '*.manifest' | while read -r file; do \
	    install -D -m 644 "$$file" "$(DESTDIR)$(PREFIX)/share/weft/recipes/$$file" || exit 1; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS@|$(LDLIBS)|' tools/weft.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/weft.pc

clean:
	rm -rf build

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TESTS:%=%.d) $(EMULATED_OBJ:.o=.d) $(UNEMULATED_OBJ:.o=.d)
