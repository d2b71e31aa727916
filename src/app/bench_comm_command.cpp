// choir bench comm, choir bench readers
#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/app/bench.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/comm/bench_collectives.hpp"
#include "choir/core/clock.hpp"
#include "choir/data/bench_readers.hpp"
#include "choir/train/build_info.hpp"

namespace choir {
namespace {

nlohmann::ordered_json to_json(const std::vector<CollectiveRow>& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const CollectiveRow& r : rows)
    json.push_back({{"name", r.name},
                    {"transport", r.transport},
                    {"bytes", r.bytes},
                    {"seconds", r.seconds},
                    {"bus_gb_per_s", r.bus_gb_per_s}});
  return json;
}

std::string to_text(const std::vector<CollectiveRow>& rows) {
  std::string text = fmt::format("# {:<15} {:>6} {:>12} {:>12} {:>12}\n", "collective", "via",
                                 "bytes", "time us", "busbw GB/s");
  for (const CollectiveRow& r : rows)
    text += fmt::format("  {:<15} {:>6} {:>12} {:>12.2f} {:>12.3f}\n", r.name, r.transport, r.bytes,
                        1e6 * r.seconds, r.bus_gb_per_s);
  return text;
}

std::string to_json(const CollectiveBench& bench) {
  nlohmann::ordered_json json{{"bench", "comm"}, {"ranks", bench.ranks}};
  json["rows"] = to_json(bench.rows);
  const AllReduceComparison& c = bench.comparison;
  json["comparison"] = {{"bytes", c.bytes},
                        {"window", c.window},
                        {"best_chunked", c.best_chunked},
                        {"best_chunk_bytes", c.best_chunk_bytes},
                        {"single", c.single},
                        {"single_in_place", c.single_in_place},
                        {"copy", c.copy},
                        {"over_chunked", c.over_chunked()},
                        {"over_single", c.over_single()}};
  json["provenance"] = nlohmann::ordered_json::parse(build_provenance());
  return json.dump();
}

std::string to_text(const CollectiveBench& bench) {
  const std::string text =
      fmt::format("# {} ranks of one node, fp32, in place, median of the slowest rank\n{}",
                  bench.ranks, to_text(bench.rows));
  const AllReduceComparison& c = bench.comparison;
  const auto line = [&](const std::string& what, double seconds) {
    return fmt::format("  {:<44} {:>9.2f} ms   {:>6.2f} x the window\n", what, 1e3 * seconds,
                       seconds / c.window);
  };
  return text +
         fmt::format("all-reduce of {}, ways in turn:\n",
                     format_bytes(static_cast<double>(c.bytes))) +
         line("node-shared window", c.window) +
         line(fmt::format("MPI_Allreduce in place, pieces of {}",
                          format_bytes(static_cast<double>(c.best_chunk_bytes))),
              c.best_chunked) +
         line("one MPI_Allreduce", c.single) +
         line("one MPI_Allreduce in place", c.single_in_place) +
         line("yardstick: every rank copies as many bytes", c.copy);
}

struct DeviceBench {
  std::string device;
  int ranks = 1;
  std::string note;  // why it is not NCCL
  std::vector<CollectiveRow> rows;
};

std::string to_json(const DeviceBench& bench) {
  nlohmann::ordered_json json{
      {"bench", "comm"}, {"ranks", bench.ranks}, {"device", bench.device}, {"note", bench.note}};
  json["rows"] = to_json(bench.rows);
  json["provenance"] = nlohmann::ordered_json::parse(build_provenance());
  return json.dump();
}

std::string to_text(const DeviceBench& bench) {
  return fmt::format(
      "# {} ranks, {}, fp32, in place, median of the slowest rank\n{}{}", bench.ranks, bench.device,
      bench.note.empty() ? "" : "# staged because " + bench.note + "\n", to_text(bench.rows));
}

template <class Bench>
void report(const Bench& bench, int rank, const BenchFiles& files) {
  if (rank != 0) return;
  if (files.table()) fmt::print("{}\n", to_text(bench));
  files.write("", to_json(bench) + "\n");
}

/// `words`: device=..., and what of parallel.* belongs to it.
int bench_comm(MpiSession& session, const CollectiveBenchOptions& options, const Arguments& words,
               const BenchFiles& files) {
  Workplace place;
  place.mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  Deck deck;
  together(place.mesh->world(), [&] {
    deck = parse_deck(R"({"device": "cpu", "data": {"format": "synthetic"},
                          "model": {"vocab_size": 256},
                          "train": {"micro_batch_size": 1, "grad_accum": 1}})",
                      "choir bench comm", words);
    if (session.size() == 1)
      throw DeckError("with one rank there is nothing to communicate",
                      "mpiexec -n 2 choir bench comm");
    if (session.rank() == 0) files.require_writable();
  });
  open_device(place, deck);
  if (place.device->host_visible())
    report(bench_collectives(*place.mesh, options), session.rank(), files);
  else
    report(DeviceBench{.device = place.device->description(),
                       .ranks = session.size(),
                       .note = place.mesh->transport_note(),
                       .rows = bench_device_collectives(*place.mesh, *place.device, options)},
           session.rank(), files);
  return 0;
}

struct ReadersRequest {
  std::string folder = ".";
  std::int64_t bytes = std::int64_t{1} << 30;
  int rounds = 5;
  BenchFiles files;
};

int bench_all_readers(MpiSession& session, const ReadersRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const auto speeds = bench_readers(mesh->world(), request.folder, request.bytes, request.rounds);
  if (session.rank() != 0) return 0;
  nlohmann::ordered_json json{
      {"bench", "readers"}, {"ranks", session.size()}, {"bytes", request.bytes}};
  for (const ReaderSpeed& s : speeds)
    json["readers"].push_back({{"reader", s.reader},
                               {"seconds", s.seconds},
                               {"gb_per_s", s.gb_per_s},
                               {"ratio", s.ratio}});
  json["provenance"] = nlohmann::ordered_json::parse(build_provenance());
  request.files.write("", json.dump() + "\n");
  if (!request.files.table()) return 0;
  fmt::print(
      "# {} in the page cache, {} ranks, each its own part, median of {} rounds\n"
      "# {:<12} {:>10} {:>10} {:>10}\n",
      format_bytes(static_cast<double>(request.bytes)), session.size(), request.rounds, "reader",
      "seconds", "GB/s", "of pread");
  for (const ReaderSpeed& s : speeds)
    fmt::print("  {:<12} {:>10.4f} {:>10.2f} {:>8.0f} %\n", s.reader, s.seconds, s.gb_per_s,
               100 * s.ratio);
  return 0;
}

}  // namespace

int bench_comm_command(const Arguments& arguments) {
  CLI::App app("All-reduce, reduce-scatter and all-gather of the ranks of a node.",
               "choir bench comm");
  CollectiveBenchOptions options;
  BenchFiles files;
  Arguments words;
  app.add_option("words", words,
                 "device=cuda: in the memory of GPUs; with parallel.transport=..., "
                 "parallel.share_device=true")
      ->check([](const std::string& word) -> std::string {
        for (const char* known : {"device=", "parallel.transport=", "parallel.share_device="})
          if (word.starts_with(known)) return "";
        return "expected device=, parallel.transport= or parallel.share_device=, not '" + word +
               "'";
      });
  app.add_option("--min-bytes", options.min_bytes, "smallest buffer")
      ->check(CLI::Range(1024, 1 << 30));
  app.add_option("--max-bytes", options.max_bytes, "largest buffer, and that of the comparison")
      ->check(CLI::Range(1024, 1 << 30));
  app.add_option("--repeats", options.repeats, "measurements of each")->check(CLI::Range(1, 1000));
  files.add_to(app, false);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return bench_comm(session, options, words, files); });
}

int bench_readers_command(const Arguments& arguments) {
  CLI::App app("The token readers on a file in the page cache, against plain pread.",
               "choir bench readers");
  ReadersRequest request;
  app.add_option("--bytes", request.bytes, "size of the file")
      ->check(CLI::Range(std::int64_t{1} << 20, std::int64_t{1} << 40));
  app.add_option("--rounds", request.rounds, "measurements of each")->check(CLI::Range(1, 1000));
  app.add_option("--folder", request.folder, "where the file is written, and removed again");
  request.files.add_to(app, false);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return bench_all_readers(session, request); });
}

}  // namespace choir
