// Each collective along each axis, in device memory and checked, for `choir bench collectives`.
#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string_view>

#include "choir/comm/mpi/mpi_communicator.hpp"
#include "choir/comm/staged/staged_communicator.hpp"
#include "choir/core/clock.hpp"
#include "choir/lab/bench/bench_collectives.hpp"

namespace choir {
namespace {

/// Small integers: their sums are exact in f32 in any order.
float value_of(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 61);
}

float sum_of(int ranks, std::size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value_of(r, i);
  return sum;
}

struct Way {
  const char* name;
  const char* redop;
  int root;
  double factor;  // of the bus bandwidth
  std::function<void()> call;
  /// The expected value of element i of the result; negative where it is not defined.
  std::function<float(std::size_t)> expected;
  bool separate = false;  // the result is in the second block
  int turns = 1;          // rounds of messages in a call, one after the other
};

class AxisBench {
 public:
  AxisBench(Mesh& mesh, Axis axis, Communicator& comm, Device& device,
            const CollectiveBenchOptions& options)
      : control_(mesh.world()), axis_(axis), comm_(comm), device_(device), options_(options) {}

  void add_rows(std::vector<CollectiveRow>& rows, std::size_t bytes) {
    const auto n = static_cast<std::size_t>(comm_.size());
    share_ = std::max<std::size_t>(1, bytes / sizeof(float) / n);
    count_ = share_ * n;
    host_.resize(count_);
    blocks_.assign(n, static_cast<std::int64_t>(share_ * sizeof(float)));
    offsets_.resize(n);
    for (std::size_t r = 0; r < n; ++r)
      offsets_[r] = static_cast<std::int64_t>(r * share_ * sizeof(float));
    first_ = comm_.allocate(count_ * sizeof(float));
    second_ = comm_.allocate(count_ * sizeof(float));
    for (const Way& way : ways()) rows.push_back(measure(way));
    second_.reset();
    first_.reset();
  }

 private:
  std::array<Way, 9> ways() {
    const double n = comm_.size();
    const int me = comm_.rank(), ranks = comm_.size();
    void* data = first_->data();
    const auto total = [=](std::size_t i) { return sum_of(ranks, i); };
    return {{
        {"all_reduce", "sum", -1, 2 * (n - 1) / n,
         [=, this] {
           if (options_.as_engine)
             comm_.start_all_reduce(data, count_, DType::f32, ReduceOp::sum).wait();
           else
             comm_.all_reduce(data, count_, DType::f32, ReduceOp::sum);
         },
         total},
        {"reduce_scatter", "sum", -1, (n - 1) / n,
         [=, this] {
           if (options_.as_engine)
             comm_.start_reduce_scatter(data, share_, DType::f32, ReduceOp::sum).wait();
           else
             comm_.reduce_scatter(data, share_, DType::f32, ReduceOp::sum);
         },
         [=, this](std::size_t i) {
           return i / share_ == static_cast<std::size_t>(me) ? sum_of(ranks, i) : -1;
         }},
        {"all_gather", "none", -1, (n - 1) / n,
         [=, this] {
           if (options_.as_engine)
             comm_.start_all_gather(data, share_, DType::f32).wait();
           else
             comm_.all_gather(data, share_, DType::f32);
         },
         [=, this](std::size_t i) { return value_of(static_cast<int>(i / share_), i); }},
        {"broadcast", "none", 0, 1, [=, this] { comm_.broadcast(data, count_ * sizeof(float), 0); },
         [](std::size_t i) { return value_of(0, i); }},
        {"reduce", "sum", 0, 1,
         [=, this] { comm_.reduce(data, count_, DType::f32, ReduceOp::sum, 0); },
         [=](std::size_t i) { return me == 0 ? sum_of(ranks, i) : -1; }},
        {"scatter", "none", 0, (n - 1) / n,
         [=, this] {
           comm_.scatter(data, blocks_.data(), offsets_.data(), second_->data(),
                         share_ * sizeof(float), 0);
         },
         [=, this](std::size_t i) {
           return i < share_ ? value_of(0, static_cast<std::size_t>(me) * share_ + i) : -1;
         },
         true},
        {"gather", "none", 0, (n - 1) / n,
         [=, this] {
           comm_.gather(data, share_ * sizeof(float), second_->data(), blocks_.data(),
                        offsets_.data(), 0);
         },
         [=, this](std::size_t i) {
           return me == 0 ? value_of(static_cast<int>(i / share_), i % share_) : -1;
         },
         true},
        {"all_to_all", "none", -1, (n - 1) / n,
         [=, this] { comm_.all_to_all(data, second_->data(), share_ * sizeof(float)); },
         [=, this](std::size_t i) {
           return value_of(static_cast<int>(i / share_),
                           static_cast<std::size_t>(me) * share_ + i % share_);
         },
         true},
        {"sendrecv", "none", -1, 1,
         [=, this] {
           if (options_.as_engine)
             for (const int parity : {0, 1}) pass_on(me % 2 == parity, before(me) % 2 == parity);
           else
             pass_on(true, true);
         },
         [=, this](std::size_t i) { return value_of(before(me), i); }, true,
         options_.as_engine ? 2 : 1},
    }};
  }

  int before(int rank) const { return (rank + comm_.size() - 1) % comm_.size(); }

  void pass_on(bool to_next, bool from_before) {
    const int me = comm_.rank(), n = comm_.size();
    const std::size_t bytes = count_ * sizeof(float);
    const std::array<Message, 2> messages{
        {{.send = true, .data = first_->data(), .bytes = bytes, .peer = (me + 1) % n},
         {.send = false, .data = second_->data(), .bytes = bytes, .peer = before(me)}}};
    const std::span<const Message> all(messages);
    if (to_next || from_before)
      comm_.start_exchange(all.subspan(to_next ? 0 : 1, to_next && from_before ? 2 : 1)).wait();
  }

  void fill() {
    for (std::size_t i = 0; i < count_; ++i) host_[i] = value_of(comm_.rank(), i);
    device_.copy_from_host(first_->data(), host_.data(), count_ * sizeof(float));
  }

  std::int64_t wrong(const Way& way) {
    device_.copy_to_host(host_.data(), (way.separate ? second_ : first_)->data(),
                         count_ * sizeof(float));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const float expected = way.expected(i);
      wrong += expected >= 0 && host_[i] != expected;
    }
    control_.all_reduce(&wrong, 1, DType::i64, ReduceOp::sum);
    return wrong;
  }

  CollectiveRow measure(const Way& way) {
    const std::size_t bytes = count_ * sizeof(float);
    // Small ones are repeated within one measurement, because of the resolution of the clock.
    const int inner = bytes <= (64 << 10) ? 20 : bytes <= (1 << 20) ? 4 : 1;
    std::vector<double> all;
    std::int64_t mistakes = 0;
    for (int round = 0; round <= options_.repeats; ++round) {  // round 0 warms up, and is checked
      fill();
      Stream(device_).synchronize();
      control_.barrier();
      const double from = now_seconds();
      for (int k = 0; k < (round == 0 ? 1 : inner); ++k) way.call();
      Stream(device_).synchronize();
      double seconds = (now_seconds() - from) / (inner * way.turns);
      if (round == 0) mistakes = wrong(way);
      control_.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
      if (round > 0) all.push_back(seconds);
    }
    std::sort(all.begin(), all.end());
    const double seconds = all[all.size() / 2], rate = static_cast<double>(bytes) / seconds / 1e9;
    return {.name = way.name,
            .transport = comm_.transport(),
            .bytes = bytes,
            .seconds = seconds,
            .bus_gb_per_s = way.factor * rate,
            .axis = std::string(short_name(axis_)),
            .redop = way.redop,
            .root = way.root,
            .ranks = comm_.size(),
            .alg_gb_per_s = rate,
            .wrong = mistakes};
  }

  Communicator& control_;
  Axis axis_;
  Communicator& comm_;
  Device& device_;
  const CollectiveBenchOptions& options_;
  std::size_t share_ = 0, count_ = 0;
  std::vector<float> host_;
  std::vector<std::int64_t> blocks_, offsets_;  // bytes of each rank
  std::unique_ptr<CommBuffer> first_, second_;
};

}  // namespace

std::vector<CollectiveRow> bench_axes(Mesh& mesh, Device& device,
                                      const CollectiveBenchOptions& options) {
  std::vector<CollectiveRow> rows;
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    Communicator& comm = mesh.along(axis);
    if (comm.size() == 1) continue;
    std::vector<Communicator*> backends{&comm};
    std::unique_ptr<Communicator> other;
    const std::string_view transport = comm.transport();
    if (transport == "node" || transport == "two-level")
      other = make_mpi_communicator(mpi_handle(mesh.host_along(axis)), "bench mpi");
    else if (transport == "nccl")
      other = make_staged_communicator(mesh.host_along(axis), device, "bench staged");
    if (other) backends.push_back(other.get());
    for (Communicator* backend : backends)
      for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4)
        AxisBench(mesh, axis, *backend, device, options).add_rows(rows, bytes);
  }
  return rows;
}

}  // namespace choir
