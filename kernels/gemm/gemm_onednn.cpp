#include "choir_features.hpp"
#include "kernels/gemm/gemm.hpp"

#if defined(CHOIR_HAVE_ONEDNN)

#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>
#include <dnnl.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>

#include "choir/core/error.hpp"

namespace choir {
namespace {

struct Key {
  std::int64_t m, n, k;
  int threads;  // a primitive splits its work when it is created
  DType in, out;
  bool transpose_a, transpose_b, accumulate, bias;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    auto mix = static_cast<std::size_t>(key.m);
    const auto add = [&mix](std::int64_t value) {
      mix = (mix ^ (mix >> 29)) * 0x9e3779b97f4a7c15u + static_cast<std::size_t>(value);
    };
    add(key.n), add(key.k), add(key.threads);
    add(static_cast<int>(key.in) * 8 + static_cast<int>(key.out));
    add(key.transpose_a + 2 * key.transpose_b + 4 * key.accumulate + 8 * key.bias);
    return mix ^ (mix >> 31);
  }
};

dnnl::memory::data_type type_of(DType type) {
  using Type = dnnl::memory::data_type;
  return type == DType::bf16 ? Type::bf16 : type == DType::f16 ? Type::f16 : Type::f32;
}

void check(dnnl_status_t status) {
  if (status == dnnl_success) return;
  // oneDNN allocates memory for packed operands if its scratchpad has none.
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  throw Error(ExitCode::other,
              fmt::format("oneDNN matmul failed with status {}", static_cast<int>(status)));
}

/// oneDNN 2.6 does not check if memory for generated code was refused, and writes through the null
/// pointer. A primitive has up to some tens of kernels, each with a mapping of 256 KiB (measured:
/// 11 kernels); most of that is never touched.
void require_addresses_for_code() {
  constexpr std::size_t kCode = 64 * 256 * 1024;
  void* const code =
      mmap(nullptr, kCode, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) throw std::bad_alloc();
  munmap(code, kCode);
}

struct Plan {
  dnnl::matmul primitive;  // empty if oneDNN does not support this product
  dnnl::memory a, b, c, bias, scratch;
  std::size_t scratch_bytes = 0;
};

/// All products of one device, with one scratchpad: they run one after the other.
class Plans {
 public:
  Plan& of(const Key& key) {
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.emplace(key, make(key)).first->second;
  }
  dnnl_stream_t stream() const { return stream_.get(); }
  void* scratch() const { return scratch_.get(); }

 private:
  struct Release {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kAlignment});
    }
  };
  static constexpr std::size_t kAlignment = 4096;
  // A plan takes 0.2 ms and some 25 KB. If batches always have new shapes (speech), old plans must
  // not accumulate.
  static constexpr std::size_t kMostPlans = 2048;

  Plan make(const Key& key);
  void reserve(std::size_t bytes);

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<Key, Plan, KeyHash> plans_;
  std::unique_ptr<std::byte[], Release> scratch_;
  std::size_t scratch_bytes_ = 0;
};

void Plans::reserve(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  scratch_.reset();
  scratch_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
  scratch_bytes_ = bytes;
}

Plan Plans::make(const Key& key) {
  using Tag = dnnl::memory::format_tag;
  const auto tag = [](bool transposed) { return transposed ? Tag::ba : Tag::ab; };
  const dnnl::memory::desc a({key.m, key.k}, type_of(key.in), tag(key.transpose_a));
  const dnnl::memory::desc b({key.k, key.n}, type_of(key.in), tag(key.transpose_b));
  const dnnl::memory::desc c({key.m, key.n}, type_of(key.out), Tag::ab);
  const dnnl::memory::desc bias({1, key.n}, type_of(key.in), Tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  require_addresses_for_code();
  Plan plan;
  try {
    const auto operation =
        key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc chosen(operation, attributes, engine_);
    plan.primitive = dnnl::matmul(chosen);
    plan.scratch_bytes = chosen.scratchpad_desc().get_size();
    plan.scratch = dnnl::memory(chosen.scratchpad_desc(), engine_, nullptr);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return {};
    check(error.status);
  }
  plan.a = dnnl::memory(a, engine_, nullptr);
  plan.b = dnnl::memory(b, engine_, nullptr);
  plan.c = dnnl::memory(c, engine_, nullptr);
  if (key.bias) plan.bias = dnnl::memory(bias, engine_, nullptr);
  reserve(plan.scratch_bytes);
  return plan;
}

/// Uses the C interface: the C++ one builds a map and a vector on the heap for every call.
void execute(const Plans& plans, const Plan& plan, const GemmArgs& args) {
  check(dnnl_memory_set_data_handle(plan.a.get(), const_cast<void*>(args.a)));
  check(dnnl_memory_set_data_handle(plan.b.get(), const_cast<void*>(args.b)));
  check(dnnl_memory_set_data_handle(plan.c.get(), args.c));
  std::array<dnnl_exec_arg_t, 5> bound{{{DNNL_ARG_SRC, plan.a.get()},
                                        {DNNL_ARG_WEIGHTS, plan.b.get()},
                                        {DNNL_ARG_DST, plan.c.get()}}};
  int count = 3;
  if (plan.scratch_bytes > 0) {
    check(dnnl_memory_set_data_handle(plan.scratch.get(), plans.scratch()));
    bound[static_cast<std::size_t>(count++)] = {DNNL_ARG_SCRATCHPAD, plan.scratch.get()};
  }
  if (args.bias) {
    check(dnnl_memory_set_data_handle(plan.bias.get(), const_cast<void*>(args.bias)));
    bound[static_cast<std::size_t>(count++)] = {DNNL_ARG_BIAS, plan.bias.get()};
  }
  check(dnnl_primitive_execute(plan.primitive.get(), plans.stream(), count, bound.data()));
}

}  // namespace

bool gemm_onednn(PlanCache& cache, const GemmArgs& args) {
  if (args.in == DType::f64) return false;
  Plans& plans = cache.get<Plans>();
  const Plan& plan =
      plans.of({args.m, args.n, args.k, omp_get_max_threads(), args.in, args.out, args.transpose_a,
                args.transpose_b, args.accumulate, args.bias != nullptr});
  if (!plan.primitive) return false;
  execute(plans, plan, args);
  return true;
}

bool onednn_offers(DType type) {
  if (type == DType::f64) return false;
  Plans plans;
  return static_cast<bool>(
      plans.of({.m = 16, .n = 16, .k = 16, .in = type, .out = type}).primitive);
}

const char* onednn_version() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
  }();
  return text.c_str();
}

}  // namespace choir

#else

namespace choir {

bool gemm_onednn(PlanCache&, const GemmArgs&) {
  return false;
}
bool onednn_offers(DType) {
  return false;
}
const char* onednn_version() {
  return nullptr;
}

}  // namespace choir

#endif
