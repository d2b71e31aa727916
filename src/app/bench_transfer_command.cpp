// choir bench collectives|reader: the speed of communication and of the token readers.

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// `words`: device=... and the keys of parallel.* that describe the layout.
int bench_collectives(MpiSession& session, const FamilyTable& families,
                      CollectiveBenchOptions options, const Arguments& words,
                      const BenchFiles& files) {
  const double started = now_seconds();
  if (session.rank() == 0)
    options.say = [started](const std::string& part) {
      print_safely(stderr, "{:6.1f} s  {}\n", now_seconds() - started, part);
    };
  Deck deck;
  Layout layout;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    together(world->world(), [&] {
      // The model has enough heads and layers for any layout of this many ranks.
      const int n = session.size();
      deck = parse_deck(families,
                        fmt::format(R"({{"device": "cpu", "data": {{"format": "synthetic"}},
                           "model": {{"vocab_size": 256, "n_layer": {0}, "n_head": {0},
                                      "n_embd": {1}, "ffn_width": {1}, "block_size": {1}}},
                           "train": {{"micro_batch_size": 1, "grad_accum": {0}}}}})",
                                    n, 32 * n),
                        "choir bench collectives", words);
      if (n == 1)
        throw DeckError("a single rank has nothing to communicate",
                        "mpiexec -n 2 choir bench collectives");
      layout = layout_of(deck, n);
      if (session.rank() == 0) files.require_writable();
    });
  }
  Workplace place;
  place.mesh = Mesh::over_world(layout, mesh_options_of(deck));
  open_device(place, deck);
  if (options.say)
    options.say("the largest buffers take longest; --max-bytes 1048576 is a quick look");
  CollectivesReport report{.device = place.device->description(),
                           .note = place.mesh->transport_note(),
                           .provenance = bench_provenance(*place.mesh, *place.device, "", words),
                           .ranks = session.size(),
                           .rows = bench_axes(*place.mesh, *place.device, options)};
  if (place.device->host_visible() && place.mesh->node().size() > 1)
    report.comparison = compare_all_reduce(*place.mesh, options);
  return finish_bench(session, files, report);
}

}  // namespace

int bench_collectives_command(const Invocation& call) {
  CommandLine app(
      "Times and checks every collective along every axis by every backend; bandwidths as in "
      "nccl-tests.",
      "choir bench collectives");
  CollectiveBenchOptions options;
  BenchFiles files;
  Arguments words;
  app.add_option("words", words,
                 "device=cuda: use GPU memory; parallel.tensor=2 ...: sizes of the axes (default: "
                 "all ranks along data)")
      .checked([](const std::string& word) -> std::string {
        for (const char* known : {"device=", "parallel."})
          if (word.starts_with(known)) return "";
        return "expected device= or parallel.KEY=, not '" + word + "'";
      });
  app.add_option("--min-bytes", options.min_bytes, "smallest buffer").within(1024, 1 << 30);
  app.add_option("--max-bytes", options.max_bytes, "largest buffer, which the comparison also uses")
      .within(1024, 1 << 30);
  app.add_option("--repeats", options.repeats, "measurements per row").within(1, 1000);
  app.add_flag("--as-engine", options.as_engine,
               "run collectives along the axes as in training: reductions and all-gathers are "
               "asynchronous, and messages go in one direction at a time");
  add_file_options(app, files);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    return bench_collectives(session, call.families, options, words, files);
  });
}

namespace {

struct BenchReaderRequest {
  std::string folder = ".";
  std::int64_t bytes = std::int64_t{1} << 30;
  int rounds = 5;
  BenchFiles files;
};

int run_bench_reader(MpiSession& session, const BenchReaderRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const CpuDevice host;
  ReaderReport report{.bytes = request.bytes,
                      .ranks = session.size(),
                      .folder = request.folder,
                      .provenance = bench_provenance(*mesh, host, "", {})};
  report.rows = bench_readers(mesh->world(), request.folder, request.bytes, request.rounds);
  return finish_bench(session, request.files, report);
}

}  // namespace

int bench_reader_command(const Invocation& call) {
  CommandLine app(
      "Compares the token readers with plain pread on a file in the page cache; output as in IOR.",
      "choir bench reader");
  BenchReaderRequest request;
  app.add_option("--bytes", request.bytes, "size of the file")
      .within(std::int64_t{1} << 20, std::int64_t{1} << 40);
  app.add_option("--rounds", request.rounds, "measurements per reader").within(1, 1000);
  app.add_option("--folder", request.folder, "folder in which a temporary file is written");
  add_file_options(app, request.files);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return run_bench_reader(session, request); });
}

}  // namespace choir
