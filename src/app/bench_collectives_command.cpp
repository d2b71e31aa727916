// choir bench collectives
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "choir/app/bench.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/comm/bench_collectives.hpp"
#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/text.hpp"
#include "choir/train/deck/deck_layout.hpp"
#include "choir/train/engine/run_setup.hpp"

namespace choir {
namespace {

struct CollectivesReport {
  std::string device, note, provenance;
  int ranks = 1;
  std::vector<CollectiveRow> rows;
  std::optional<AllReduceComparison> comparison;  // of host memory, with several ranks on a node

  std::int64_t wrong() const {
    std::int64_t sum = 0;
    for (const CollectiveRow& row : rows) sum += row.wrong;
    return sum;
  }
  bool valid() const { return wrong() == 0 && !rows.empty(); }
};

std::string to_json(const CollectivesReport& report) {
  nlohmann::ordered_json json{{"bench", "collectives"},
                              {"valid", report.valid()},
                              {"ranks", report.ranks},
                              {"device", report.device},
                              {"note", report.note}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const CollectiveRow& r : report.rows)
    json["rows"].push_back({{"name", r.name},
                            {"axis", r.axis},
                            {"ranks", r.ranks},
                            {"transport", r.transport},
                            {"bytes", r.bytes},
                            {"count", r.bytes / sizeof(float)},
                            {"type", "float"},
                            {"redop", r.redop},
                            {"root", r.root},
                            {"seconds", r.seconds},
                            {"alg_gb_per_s", r.alg_gb_per_s},
                            {"bus_gb_per_s", r.bus_gb_per_s},
                            {"wrong", r.wrong}});
  if (report.comparison) {
    const AllReduceComparison& c = *report.comparison;
    json["comparison"] = {{"bytes", c.bytes},
                          {"window", c.window},
                          {"best_chunked", c.best_chunked},
                          {"best_chunk_bytes", c.best_chunk_bytes},
                          {"single", c.single},
                          {"single_in_place", c.single_in_place},
                          {"copy", c.copy},
                          {"over_chunked", c.over_chunked()},
                          {"over_single", c.over_single()}};
  }
  json["provenance"] = nlohmann::ordered_json::parse(report.provenance);
  return json.dump() + "\n";
}

std::string to_csv(const std::vector<CollectiveRow>& rows) {
  std::string text = "name,axis,ranks,transport,bytes,count,type,redop,root,us,algbw,busbw,wrong\n";
  for (const CollectiveRow& r : rows)
    text += fmt::format("{},{},{},{},{},{},float,{},{},{:.3f},{:.4f},{:.4f},{}\n", r.name, r.axis,
                        r.ranks, r.transport, r.bytes, r.bytes / sizeof(float), r.redop, r.root,
                        1e6 * r.seconds, r.alg_gb_per_s, r.bus_gb_per_s, r.wrong);
  return text;
}

std::string to_text(const AllReduceComparison& c) {
  const auto line = [&](const std::string& what, double seconds) {
    return fmt::format("  {:<44} {:>9.2f} ms   {:>6.2f} x the window\n", what, 1e3 * seconds,
                       seconds / c.window);
  };
  return fmt::format("# all-reduce of {} on a node, ways in turn:\n",
                     format_bytes(static_cast<double>(c.bytes))) +
         line("node-shared window", c.window) +
         line(fmt::format("MPI_Allreduce in place, pieces of {}",
                          format_bytes(static_cast<double>(c.best_chunk_bytes))),
              c.best_chunked) +
         line("one MPI_Allreduce", c.single) +
         line("one MPI_Allreduce in place", c.single_in_place) +
         line("yardstick: every rank copies as many bytes", c.copy);
}

std::string group_of(const CollectiveRow& r) {
  return fmt::format("# {} along {} ({}) by {}", r.name, r.axis, counted(r.ranks, "rank"),
                     r.transport);
}

/// Measured were all collectives of one size, then the next size; printed is one table each.
std::vector<CollectiveRow> by_group(const std::vector<CollectiveRow>& rows) {
  std::vector<std::string> groups;
  for (const CollectiveRow& r : rows)
    if (std::ranges::find(groups, group_of(r)) == groups.end()) groups.push_back(group_of(r));
  std::vector<CollectiveRow> sorted;
  for (const std::string& group : groups)
    std::ranges::copy_if(rows, std::back_inserter(sorted),
                         [&](const CollectiveRow& r) { return group_of(r) == group; });
  return sorted;
}

std::string to_text(const CollectivesReport& report) {
  std::string text = fmt::format("# {}, {}, median of the slowest rank\n",
                                 counted(report.ranks, "rank"), report.device);
  if (!report.note.empty()) text += "# staged because " + report.note + "\n";
  std::string heading;
  double sum = 0;
  for (const CollectiveRow& r : by_group(report.rows)) {
    if (group_of(r) != heading)
      text += fmt::format("{}\n# {:>12} {:>12} {:>6} {:>6} {:>5} {:>12} {:>8} {:>8} {:>7}\n",
                          heading = group_of(r), "size (B)", "count", "type", "redop", "root",
                          "time (us)", "algbw", "busbw", "#wrong");
    text += fmt::format("  {:>12} {:>12} {:>6} {:>6} {:>5} {:>12.2f} {:>8.3f} {:>8.3f} {:>7}\n",
                        r.bytes, r.bytes / sizeof(float), "float", r.redop, r.root, 1e6 * r.seconds,
                        r.alg_gb_per_s, r.bus_gb_per_s, r.wrong);
    sum += r.bus_gb_per_s;
  }
  if (report.comparison) text += to_text(*report.comparison);
  return text +
         fmt::format("# avg bus bandwidth: {:.4f} GB/s\n{}: {} of {} rows, {} values wrong\n",
                     sum / static_cast<double>(report.rows.size()),
                     report.valid() ? "VALID" : "INVALID", report.rows.size(), report.rows.size(),
                     report.wrong());
}

/// `words`: device=..., and what of parallel.* belongs to it.
int bench_collectives(MpiSession& session, const CollectiveBenchOptions& options,
                      const Arguments& words, const BenchFiles& files) {
  Deck deck;
  Layout layout;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    together(world->world(), [&] {
      // Heads and layers enough for any layout of so many ranks.
      const int n = session.size();
      deck = parse_deck(fmt::format(R"({{"device": "cpu", "data": {{"format": "synthetic"}},
                           "model": {{"vocab_size": 256, "n_layer": {0}, "n_head": {0},
                                      "n_embd": {1}, "ffn_width": {1}, "block_size": {1}}},
                           "train": {{"micro_batch_size": 1, "grad_accum": {0}}}}})",
                                    n, 32 * n),
                        "choir bench collectives", words);
      if (n == 1)
        throw DeckError("with one rank there is nothing to communicate",
                        "mpiexec -n 2 choir bench collectives");
      layout = layout_of(deck, n);
      if (session.rank() == 0) files.require_writable();
    });
  }
  Workplace place;
  place.mesh = Mesh::over_world(layout, transport_of(deck));
  open_device(place, deck);
  CollectivesReport report{.device = place.device->description(),
                           .note = place.mesh->transport_note(),
                           .provenance = bench_provenance(*place.mesh, *place.device, "", words),
                           .ranks = session.size(),
                           .rows = bench_axes(*place.mesh, *place.device, options)};
  if (place.device->host_visible() && place.mesh->node().size() > 1)
    report.comparison = compare_all_reduce(*place.mesh, options);
  if (session.rank() != 0) return report.valid() ? 0 : static_cast<int>(ExitCode::other);
  if (files.table()) fmt::print("{}", to_text(report));
  return files.finish(to_csv(report.rows), to_json(report), report.valid());
}

}  // namespace

int bench_collectives_command(const Arguments& arguments) {
  CommandLine app(
      "Every collective along every axis by every backend, as nccl-tests counts; checked.",
      "choir bench collectives");
  CollectiveBenchOptions options;
  BenchFiles files;
  Arguments words;
  app.add_option("words", words,
                 "device=cuda: in the memory of GPUs; parallel.tensor=2 ...: the axes, without "
                 "them all ranks are along data")
      .checked([](const std::string& word) -> std::string {
        for (const char* known : {"device=", "parallel."})
          if (word.starts_with(known)) return "";
        return "expected device= or parallel.KEY=, not '" + word + "'";
      });
  app.add_option("--min-bytes", options.min_bytes, "smallest buffer").within(1024, 1 << 30);
  app.add_option("--max-bytes", options.max_bytes, "largest buffer, and that of the comparison")
      .within(1024, 1 << 30);
  app.add_option("--repeats", options.repeats, "measurements of each").within(1, 1000);
  files.add_to(app);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi(
      [&](MpiSession& session) { return bench_collectives(session, options, words, files); });
}

}  // namespace choir
