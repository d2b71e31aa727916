// Timing of collectives: all-reduce algorithms side by side on a node, and each collective along
// each axis of a mesh.

#include "src/lab/bench/bench_collectives.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string_view>

#include "choir/core/philox.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/node/node_communicator.hpp"
#include "src/comm/staged/staged_communicator.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

void fill_random(void* data, std::size_t count, int rank) {
  auto* values = static_cast<float*>(data);
  const PhiloxKey key = philox_key(static_cast<std::uint64_t>(rank), "bench");
  for (std::size_t i = 0; i < count; i += 4) {
    const PhiloxBlock words = philox_at(key, i);
    for (std::size_t k = 0; k < 4 && i + k < count; ++k)
      values[i + k] = static_cast<float>(uniform01(words[k]) - 0.5);
  }
}

// Times each algorithm once per round, so that a slow moment of the machine affects all of them,
// and returns the medians of the slowest rank's times.
class SideBySide {
 public:
  SideBySide(Communicator& control, int repeats) : control_(control), repeats_(repeats) {}
  void add(std::function<void()> prepare, std::function<void()> way) {
    ways_.push_back({std::move(prepare), std::move(way), {}});
  }
  std::vector<double> medians() {
    for (int round = 0; round <= repeats_; ++round)  // round 0 warms up
      for (Way& way : ways_) {
        if (way.prepare) way.prepare();
        control_.barrier();
        const double from = now_seconds();
        way.run();
        double seconds = now_seconds() - from;
        control_.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
        if (round > 0) way.seconds.push_back(seconds);
      }
    std::vector<double> result;
    for (Way& way : ways_) {
      std::sort(way.seconds.begin(), way.seconds.end());
      result.push_back(way.seconds[way.seconds.size() / 2]);
    }
    return result;
  }

 private:
  struct Way {
    std::function<void()> prepare, run;
    std::vector<double> seconds;
  };
  Communicator& control_;
  int repeats_;
  std::vector<Way> ways_;
};

void check_mpi(int code) {
  mpi_check(code, "MPI_Allreduce", "bench");
}

AllReduceComparison compare(Communicator& mpi, Communicator& node,
                            const CollectiveBenchOptions& options) {
  AllReduceComparison result;
  result.bytes = options.max_bytes;
  const std::size_t count = options.max_bytes / sizeof(float);
  const auto window = node.allocate(options.max_bytes);
  const auto plain = mpi.allocate(options.max_bytes), other = mpi.allocate(options.max_bytes);
  const MPI_Comm comm = mpi_handle(mpi);
  SideBySide ways(mpi, options.repeats);
  // Fresh values before each round, because sums must not grow from round to round.
  const auto fresh = [&](const CommBuffer& buffer) {
    return [&] { fill_random(buffer.data(), count, mpi.rank()); };
  };
  ways.add(fresh(*window),
           [&] { node.all_reduce(window->data(), count, DType::f32, ReduceOp::sum); });
  constexpr std::array<std::size_t, 3> kChunks{256 << 10, 1 << 20, 4 << 20};
  for (const std::size_t chunk : kChunks)
    ways.add(fresh(*plain), [&, chunk] {
      for_each_chunk(count, chunk / sizeof(float), [&](std::size_t offset, std::size_t length) {
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, static_cast<float*>(plain->data()) + offset,
                                static_cast<int>(length), MPI_FLOAT, MPI_SUM, comm));
      });
    });
  ways.add(fresh(*plain), [&] {
    check_mpi(MPI_Allreduce(plain->data(), other->data(), static_cast<int>(count), MPI_FLOAT,
                            MPI_SUM, comm));
  });
  ways.add(fresh(*plain), [&] {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, plain->data(), static_cast<int>(count), MPI_FLOAT,
                            MPI_SUM, comm));
  });
  ways.add(fresh(*plain),
           [&] { bulk_copy(other->data(), plain->data(), options.max_bytes, true); });
  const std::vector<double> seconds = ways.medians();
  result.window = seconds[0];
  const auto best = std::min_element(seconds.begin() + 1, seconds.begin() + 4);
  result.best_chunked = *best;
  result.best_chunk_bytes = kChunks[static_cast<std::size_t>(best - seconds.begin()) - 1];
  result.single = seconds[4];
  result.single_in_place = seconds[5];
  result.copy = seconds[6];
  return result;
}

void add_rows(CollectiveBench& bench, Communicator& mpi, Communicator& node, std::size_t bytes,
              int repeats) {
  const double n = mpi.size();
  const std::size_t count = bytes / sizeof(float),
                    share = count / static_cast<std::size_t>(mpi.size());
  const auto window = node.allocate(bytes), plain = mpi.allocate(bytes);
  // Small ones are repeated within one measurement, because of the resolution of the clock.
  const int inner = bytes <= (64 << 10) ? 20 : bytes <= (1 << 20) ? 4 : 1;
  SideBySide ways(mpi, repeats);
  for (const bool shared : {false, true}) {
    Communicator* comm = shared ? &node : &mpi;
    void* data = shared ? window->data() : plain->data();
    const auto fresh = [=, &mpi] { fill_random(data, count, mpi.rank()); };
    const auto add = [&](auto call) {
      ways.add(fresh, [=] {
        for (int k = 0; k < inner; ++k) call();
      });
    };
    add([=] { comm->all_reduce(data, count, DType::f32, ReduceOp::sum); });
    add([=] { comm->reduce_scatter(data, share, DType::f32, ReduceOp::sum); });
    add([=] { comm->all_gather(data, share, DType::f32); });
  }
  const std::vector<double> seconds = ways.medians();
  constexpr std::array<const char*, 3> kNames{"all_reduce", "reduce_scatter", "all_gather"};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double each = seconds[i] / inner, factor = (i % 3 == 0 ? 2.0 : 1.0) * (n - 1) / n;
    bench.rows.push_back({kNames[i % 3], i < 3 ? "mpi" : "node", bytes, each,
                          factor * static_cast<double>(bytes) / each / 1e9});
  }
}

}  // namespace

AllReduceComparison compare_all_reduce(Mesh& mesh, const CollectiveBenchOptions& options) {
  const MPI_Comm group = mpi_handle(mesh.node());
  const auto mpi = make_mpi_communicator(group, "bench mpi");
  const auto node = make_node_communicator(group, "bench node");
  return compare(*mpi, *node, options);
}

CollectiveBench bench_collectives(Mesh& mesh, const CollectiveBenchOptions& options) {
  CollectiveBench bench;
  bench.ranks = mesh.node().size();
  if (bench.ranks == 1) return bench;
  const MPI_Comm group = mpi_handle(mesh.node());
  const auto mpi = make_mpi_communicator(group, "bench mpi");
  const auto node = make_node_communicator(group, "bench node");
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes;
       bytes *= static_cast<std::size_t>(options.factor))
    add_rows(bench, *mpi, *node, bytes, options.repeats);
  bench.comparison = compare(*mpi, *node, options);
  return bench;
}

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
  bool separate = false;     // the result is in the second block
  int turns = 1;             // rounds of messages in a call, one after the other
  std::size_t elements = 0;  // of the result; 0: as many as the call was given
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
    host_.resize(std::max(count_, received()));
    blocks_.assign(n, static_cast<std::int64_t>(share_ * sizeof(float)));
    offsets_.resize(n);
    for (std::size_t r = 0; r < n; ++r)
      offsets_[r] = static_cast<std::int64_t>(r * share_ * sizeof(float));
    first_ = comm_.allocate(std::max(count_, part_offset(comm_.size())) * sizeof(float));
    second_ = comm_.allocate(std::max(count_, received()) * sizeof(float));
    for (const Way& way : ways()) rows.push_back(measure(way));
    second_.reset();
    first_.reset();
  }

 private:
  std::array<Way, 10> ways() {
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
        // The busiest rank receives 2n/(n+1) times the mean.
        {"all_to_all_v", "none", -1, 2 * (n - 1) / (n + 1), [=, this] { exchange_parts(); },
         [=, this](std::size_t i) {
           const auto from = static_cast<int>(i / part(me));
           return from == me ? -1 : value_of(from, part_offset(me) + i % part(me));
         },
         true, 1, received()},
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

  // The all-to-all with unequal counts sends more to each further rank, as tokens to experts of
  // which some are popular: rank r is sent (r + 1) 2 / (n + 1) times the mean by every rank.

  std::size_t part(int to) const {
    const auto n = static_cast<std::size_t>(comm_.size());
    return std::max<std::size_t>(1, 2 * share_ * (static_cast<std::size_t>(to) + 1) / (n + 1));
  }
  std::size_t part_offset(int to) const {
    std::size_t offset = 0;
    for (int r = 0; r < to; ++r) offset += part(r);
    return offset;
  }
  std::size_t received() const {
    return static_cast<std::size_t>(comm_.size()) * part(comm_.rank());
  }

  void exchange_parts() {
    auto *send = static_cast<float*>(first_->data()),
         *receive = static_cast<float*>(second_->data());
    const std::size_t own = part(comm_.rank());
    std::vector<Message> messages;
    for (int step = 1; step < comm_.size(); ++step) {  // each rank begins with its neighbours
      const int to = (comm_.rank() + step) % comm_.size();
      const int from = (comm_.rank() + comm_.size() - step) % comm_.size();
      messages.push_back({.send = true,
                          .data = send + part_offset(to),
                          .bytes = part(to) * sizeof(float),
                          .peer = to});
      messages.push_back({.send = false,
                          .data = receive + static_cast<std::size_t>(from) * own,
                          .bytes = own * sizeof(float),
                          .peer = from});
    }
    comm_.start_exchange(messages).wait();
  }

  void fill() {
    const std::size_t elements = std::max(count_, part_offset(comm_.size()));
    host_.resize(std::max(elements, host_.size()));
    for (std::size_t i = 0; i < elements; ++i) host_[i] = value_of(comm_.rank(), i);
    device_.copy_from_host(first_->data(), host_.data(), elements * sizeof(float));
  }

  std::int64_t wrong(const Way& way) {
    const std::size_t elements = way.elements > 0 ? way.elements : count_;
    device_.copy_to_host(host_.data(), (way.separate ? second_ : first_)->data(),
                         elements * sizeof(float));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < elements; ++i) {
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

/// ", about 12.3 s left", if a size takes as long as its bytes are more than those of the size
/// before, which took `last` seconds. "" while sizes are below 1 MiB or fast: those wait for
/// latencies.
std::string left_of(const CollectiveBenchOptions& options, std::size_t bytes, double last) {
  constexpr double kTells = 0.3;
  constexpr std::size_t kBandwidth = std::size_t{1} << 20;
  if (last < kTells || bytes / static_cast<std::size_t>(options.factor) < kBandwidth) return {};
  const auto factor = static_cast<double>(options.factor);
  double left = 0;
  for (auto size = static_cast<double>(bytes); size <= static_cast<double>(options.max_bytes);
       size *= factor)
    left += last *= factor;
  return fmt::format(", about {} left", format_duration(left));
}

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
    for (Communicator* backend : backends) {
      double last = 0;  // seconds of the size before
      for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes;
           bytes *= static_cast<std::size_t>(options.factor)) {
        if (options.say)
          options.say(fmt::format(
              "{} of {} by {}: {} of at most {}{}", short_name(axis), counted(comm.size(), "rank"),
              backend->transport(), format_bytes(static_cast<double>(bytes)),
              format_bytes(static_cast<double>(options.max_bytes)), left_of(options, bytes, last)));
        const double began = now_seconds();
        AxisBench(mesh, axis, *backend, device, options).add_rows(rows, bytes);
        last = now_seconds() - began;
      }
    }
  }
  return rows;
}

}  // namespace choir
