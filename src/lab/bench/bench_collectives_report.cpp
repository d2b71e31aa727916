// The report of `choir bench collectives`.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "choir/core/clock.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/plural.hpp"
#include "choir/lab/bench/bench_report.hpp"

namespace choir {
namespace {

std::string to_text(const AllReduceComparison& c) {
  const auto line = [&](const std::string& what, double seconds) {
    return fmt::format("  {:<44} {:>9.2f} ms   {:>6.2f} x the window\n", what, 1e3 * seconds,
                       seconds / c.window);
  };
  return fmt::format("# all-reduce of {} on a node, algorithms in turn:\n",
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

/// Rows are measured size by size; this sorts them into one table per collective.
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

}  // namespace

std::int64_t CollectivesReport::wrong() const {
  std::int64_t sum = 0;
  for (const CollectiveRow& row : rows) sum += row.wrong;
  return sum;
}

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
  json["provenance"] = parsed_ordered_json(report.provenance);
  return dumped(json) + "\n";
}

std::string to_csv(const CollectivesReport& report) {
  std::string text = "name,axis,ranks,transport,bytes,count,type,redop,root,us,algbw,busbw,wrong\n";
  for (const CollectiveRow& r : report.rows)
    text += fmt::format("{},{},{},{},{},{},float,{},{},{:.3f},{:.4f},{:.4f},{}\n", r.name, r.axis,
                        r.ranks, r.transport, r.bytes, r.bytes / sizeof(float), r.redop, r.root,
                        1e6 * r.seconds, r.alg_gb_per_s, r.bus_gb_per_s, r.wrong);
  return text;
}

std::string to_string(const CollectivesReport& report) {
  std::string text = fmt::format("# {}, {}, median over the rounds of the slowest rank's time\n",
                                 counted(report.ranks, "rank"), report.device);
  if (!report.note.empty()) text += "# transfers are staged: " + report.note + "\n";
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
         fmt::format("# avg bus bandwidth: {:.4f} GB/s\n{}: {} of {} rows, {} wrong values\n",
                     sum / static_cast<double>(report.rows.size()),
                     report.valid() ? "VALID" : "INVALID", report.rows.size(), report.rows.size(),
                     report.wrong());
}

}  // namespace choir
