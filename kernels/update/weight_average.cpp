// Averages of weights: checks, dispatch, CPU twin and fp64 reference.

#include "kernels/update/weight_average.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void weight_average(const Stream& stream, const WeightAverage& args) {
  const DType weight = args.weight.dtype;
  const std::int64_t n = args.weight.count();
  CHOIR_CHECK(weight == DType::f32 || weight == DType::f64 || weight == DType::bf16,
              "weights of type {}", name_of(weight));
  check_tensor(args.weight, weight, n, "weight");
  check_tensor(args.average, weight == DType::f64 ? DType::f64 : DType::f32, n, "average");
  CHOIR_CHECK(args.control != nullptr, "weight_average without a step control");
  CHOIR_CHECK(args.decay > 0 && args.decay < 1, "decay {}", args.decay);
  stream.count(3.0 * static_cast<double>(n), 2 * as_bytes(args.average) + as_bytes(args.weight));
  if (on_cuda(stream)) return cuda::weight_average(stream, args);
  if (!computes(stream)) return;
  cpu::weight_average(args);
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

template <class A, class Weight>
void average_of(const ops::WeightAverage& args, A keep, A take) {
  A* const average = args.average.as<A>();
  const auto* const weight = static_cast<const Weight*>(args.weight.data);
  parallel_flat(
      args.weight.count(),
      [&](std::int64_t first, std::int64_t last) {
        for_vectors<A>(first, last, [&](std::int64_t i, auto access) {
          const Vec<A> w = access.load(weight + i);
          // Memory without an average yet may hold anything, so it is not multiplied by 0.
          access.store(average + i, keep == 0 ? w : keep * access.load(average + i) + take * w);
        });
      },
      2);
}

}  // namespace

void weight_average(const ops::WeightAverage& args) {
  const ops::StepControl& c = *args.control;
  if (c.apply == 0) return;
  const bool begins = c.updates == static_cast<double>(args.first);
  const double keep = begins ? 0 : args.decay, take = begins ? 1 : 1 - args.decay;
  if (args.weight.dtype == DType::f64) return average_of<double, double>(args, keep, take);
  const auto narrow_keep = static_cast<float>(keep), narrow_take = static_cast<float>(take);
  if (args.weight.dtype == DType::bf16)
    return average_of<float, bf16>(args, narrow_keep, narrow_take);
  average_of<float, float>(args, narrow_keep, narrow_take);
}

}  // namespace choir::cpu

namespace choir::ref {

void weight_average(const ops::WeightAverage& args) {
  const ops::StepControl& c = *args.control;
  if (c.apply == 0) return;
  for (std::int64_t i = 0; i < args.weight.count(); ++i) {
    const double w = args.weight.dtype == DType::bf16
                         ? static_cast<double>(static_cast<float>(args.weight.as<bf16>()[i]))
                         : args.weight.as<double>()[i];
    double& average = args.average.as<double>()[i];
    average = c.updates == static_cast<double>(args.first)
                  ? w
                  : args.decay * average + (1 - args.decay) * w;
  }
}

}  // namespace choir::ref
