// Times of communicator calls by kind, size and network, and the share that computation hides.
#include <algorithm>
#include <array>
#include <string_view>

#include "choir/core/clock.hpp"
#include "choir/core/median.hpp"
#include "choir/lab/bench/bench_collectives.hpp"
#include "choir/ops/bench_operands.hpp"
#include "choir/ops/gemm.hpp"
#include "src/lab/calibrate/calibrate_parts.hpp"

namespace choir {
namespace {

constexpr std::array<std::pair<std::string_view, CallKind>, 5> kKinds{{
    {"all_reduce", CallKind::all_reduce},
    {"reduce_scatter", CallKind::reduce_scatter},
    {"all_gather", CallKind::all_gather},
    {"all_to_all", CallKind::all_to_all},
    {"sendrecv", CallKind::message},
}};

/// The engine polls a started call about once per layer.
constexpr int kPolls = 4;

/// Measures an all-reduce, products, and both at once.
class OverlapBench {
 public:
  OverlapBench(Mesh& mesh, Communicator& comm, Device& device)
      : world_(mesh.world()),
        comm_(comm),
        stream_(device),
        data_(device, pool_),
        buffer_(comm.allocate(kBytes)) {
    const Shape square{kExtent, kExtent};
    a_ = data_.normal(DType::f32, square), b_ = data_.normal(DType::f32, square);
    c_ = data_.empty(DType::f32, square);
  }

  double hidden() {
    calls_ = 1;
    const double call = measure(true, false), once = measure(false, true);
    calls_ = std::clamp(static_cast<int>(call / once), 1, 200);
    std::vector<double> shares;
    for (int round = 0; round < 7; ++round) {
      const double alone = measure(true, false), products = measure(false, true),
                   both = measure(true, true);
      shares.push_back((alone + products - both) / std::min(alone, products));
    }
    return std::clamp(median_of(shares), -1.0, 1.0);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  static constexpr std::int64_t kExtent = 192;

  /// Returns the seconds of the slowest rank.
  double measure(bool call, bool products) {
    world_.barrier();
    const double start = now_seconds();
    CommRequest* request = nullptr;
    if (call)
      request = &comm_.start_all_reduce(buffer_->data(), kBytes / sizeof(float), DType::f32,
                                        ReduceOp::sum);
    for (int i = 0; products && i < calls_ * kPolls; ++i) {
      ops::gemm(stream_, a_[0], b_[0], c_[0], {.transpose_b = true});
      if (request != nullptr && i % calls_ == 0) request->test();
    }
    stream_.synchronize();
    if (request != nullptr) request->wait();
    double seconds = now_seconds() - start;
    world_.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    return seconds;
  }

  Communicator& world_;
  Communicator& comm_;
  ops::NormalPool pool_;
  Stream stream_;
  ops::BenchOperands data_;
  std::unique_ptr<CommBuffer> buffer_;
  ops::Operand a_, b_, c_;
  int calls_ = 1;
};

}  // namespace

void add_calls(Calibration& to, Mesh& mesh, Device& device, bool brief) {
  CollectiveBenchOptions options;
  // Messages take long over a slow network; larger ones have the same rate.
  options.max_bytes = brief ? 64 << 10 : mesh.nodes() > 1 ? 4 << 20 : 16 << 20;
  options.repeats = brief ? 1 : 5;
  options.as_engine = true;
  for (const CollectiveRow& row : bench_axes(mesh, device, options)) {
    const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(),
                                          [&](const auto& k) { return k.first == row.name; });
    if (kind == kKinds.end()) continue;
    to.calls.push_back({.across = row.axis == short_name(Axis::data),
                        .window = row.transport != "mpi" && row.transport != "staged",
                        .kind = kind->second,
                        .ranks = row.ranks,
                        .bytes = static_cast<double>(row.bytes),
                        .seconds = row.seconds});
  }
}

void add_overlaps(Calibration& to, Mesh& mesh, Device& device) {
  for (const Axis axis : {Axis::tensor, Axis::data})
    if (mesh.along(axis).size() > 1)
      to.overlaps.push_back(
          {axis == Axis::data, OverlapBench(mesh, mesh.along(axis), device).hidden()});
}

}  // namespace choir
