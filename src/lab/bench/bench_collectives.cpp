#include "choir/lab/bench/bench_collectives.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "choir/comm/chunks.hpp"
#include "choir/comm/node/node_communicator.hpp"
#include "choir/comm/tree_reduce.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/philox.hpp"

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
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4)
    add_rows(bench, *mpi, *node, bytes, options.repeats);
  bench.comparison = compare(*mpi, *node, options);
  return bench;
}

}  // namespace choir
