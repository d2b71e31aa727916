// The reports of `choir bench ops`, `gemm`, `attention` and `collectives`.

#include "src/lab/bench/bench_report.hpp"

#include <fmt/core.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <iterator>

#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

nlohmann::ordered_json ops_provenance(const BenchReport& report) {
  auto json = parsed_ordered_json(report.provenance.empty()
                                      ? build_provenance(MpiSession::library_version())
                                      : report.provenance);
  json["device"] = report.device;
  json["threads"] = omp_get_max_threads();
  return json;
}

/// The time that a micro-batch of the deck spends in these rows; "" if no row belongs to one.
std::string sum_line(const BenchReport& report) {
  double total = 0, floor = 0;
  for (const ops::BenchRow& r : report.rows) {
    if (r.calls == 0 || r.variant == "cudnn") continue;
    total += r.seconds * static_cast<double>(r.calls);
    floor += r.work / r.ceiling * static_cast<double>(r.calls);
  }
  if (total == 0) return "";
  return fmt::format(
      "  a micro-batch makes these calls in {:.3f} ms; {:.3f} ms at the ceiling ({:.0f} %)\n",
      1e3 * total, 1e3 * floor, 100 * floor / total);
}

/// Compares the implementations of one shape.
std::string ratio_lines(const BenchReport& report) {
  std::string text;
  for (const ops::BenchRow& other : report.rows) {
    if (other.variant != "cudnn") continue;
    const auto own = std::find_if(report.rows.begin(), report.rows.end(), [&](const auto& r) {
      return r.variant == "own" && r.name == other.name && r.shape == other.shape &&
             r.dtype == other.dtype;
    });
    if (own == report.rows.end()) continue;
    text += fmt::format(
        "  {:<20} {:<34} {:<5} own {:>8.2f}, cudnn {:>8.2f} TFLOP/s: own is {:.2f} x cudnn\n",
        other.name, other.shape, name_of(other.dtype), own->rate() / 1e12, other.rate() / 1e12,
        other.seconds / own->seconds);
  }
  return text.empty() ? text : "# own against cudnn\n" + text;
}

}  // namespace

std::string noisy(const std::string& noise) {
  return noise.empty() ? ""
                       : fmt::format("; NOISY: {}: measure again while nothing else runs", noise);
}

bool BenchReport::valid() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.valid(); });
}

std::string to_string(const BenchReport& report) {
  std::string text = fmt::format("# bench {} on {}\n", report.bench, report.device);
  for (const std::string& ceiling : report.ceilings) text += "# ceiling: " + ceiling + "\n";
  std::size_t names = 26;
  for (const ops::BenchRow& row : report.rows) names = std::max(names, row.title().size());
  text += ops::bench_row_header(names) + "\n";
  for (const ops::BenchRow& row : report.rows) text += ops::to_string(row, names) + "\n";
  text += sum_line(report) + ratio_lines(report);
  for (const std::string& remark : report.remarks) text += "# left out: " + remark + "\n";
  const auto wrong = std::count_if(report.rows.begin(), report.rows.end(),
                                   [](const auto& row) { return !row.valid(); });
  const bool crowded = std::ranges::any_of(report.rows, [](const ops::BenchRow& row) {
    return row.unit == ops::BenchUnit::flops && row.fraction() > 1.05;
  });
  if (crowded)
    text +=
        "# above 105 %: the ceiling, a large product, was slower than these rows; other programs "
        "used the cores while it was measured\n";
  const bool cached = std::ranges::any_of(report.rows, [](const ops::BenchRow& row) {
    return row.unit == ops::BenchUnit::bytes && row.fraction() > 1;
  });
  if (cached)
    text +=
        "# above 100 %: the tensors of these rows fit into caches, and the ceiling is that of "
        "memory\n";
  return text + (report.valid()
                     ? fmt::format("VALID: {}{}\n", counted(report.rows.size(), "row"),
                                   noisy(report.noise))
                     : fmt::format("INVALID: {} of {} rows\n", wrong, report.rows.size()));
}

std::string to_json(const BenchReport& report) {
  nlohmann::ordered_json json{{"bench", report.bench}, {"valid", report.valid()}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const ops::BenchRow& r : report.rows)
    json["rows"].push_back({{"name", r.name},
                            {"variant", r.variant},
                            {"shape", r.shape},
                            {"dtype", name_of(r.dtype)},
                            {"unit", r.unit == ops::BenchUnit::bytes ? "bytes" : "flops"},
                            {"seconds", r.seconds},
                            {"work", r.work},
                            {"flops", r.flops()},
                            {"bytes", r.bytes()},
                            {"rate", r.rate()},
                            {"ceiling", r.ceiling},
                            {"fraction", r.fraction()},
                            {"error", r.error},
                            {"allowed", r.allowed},
                            {"calls", r.calls},
                            {"valid", r.valid()}});
  json["ceilings"] = report.ceilings;
  json["remarks"] = report.remarks;
  json["noise"] = report.noise;
  json["provenance"] = ops_provenance(report);
  return dumped(json) + "\n";
}

std::string to_csv(const BenchReport& report) {
  const nlohmann::ordered_json from = ops_provenance(report);
  const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
  std::string text =
      "bench,name,variant,shape,dtype,us,rate,unit,fraction,error,allowed,verdict,calls,device,"
      "threads,revision,date,flops,bytes,noise\n";
  for (const ops::BenchRow& r : report.rows) {
    const bool bytes = r.unit == ops::BenchUnit::bytes;
    text += fmt::format(
        "{},{},{},{},{},{:.3f},{:.3f},{},{:.4f},{:.3e},{:.3e},{},{},{},{},{},{},{:.6g},{:.6g},{}\n",
        report.bench, r.name, r.variant, quoted(r.shape), name_of(r.dtype), 1e6 * r.seconds,
        r.rate() / (bytes ? 1e9 : 1e12), bytes ? "GB/s" : "TFLOP/s", r.fraction(), r.error,
        r.allowed, r.valid() ? "VALID" : "INVALID", r.calls, quoted(report.device),
        from["threads"].get<int>(), from["revision"].get<std::string>(),
        from["date"].get<std::string>(), r.flops(), r.bytes(), quoted(report.noise));
  }
  return text;
}

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
  nlohmann::ordered_json json{{"bench", "collectives"}, {"valid", report.valid()},
                              {"ranks", report.ranks},  {"device", report.device},
                              {"note", report.note},    {"noise", report.noise}};
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
  std::vector<CollectiveRow> largest;  // of each group
  for (const CollectiveRow& r : by_group(report.rows)) {
    if (largest.empty() || group_of(largest.back()) != group_of(r)) largest.push_back(r);
    if (r.bytes > largest.back().bytes) largest.back() = r;
    if (group_of(r) != heading)
      text += fmt::format(
          "{}\n# {:>12} {:>12} {:>6} {:>6} {:>5} {:>12} {:>8} {:>8} {:>7}\n"
          "# {:>12} {:>12} {:>6} {:>6} {:>5} {:>12} {:>8} {:>8}\n",
          heading = group_of(r), "size (B)", "count", "type", "redop", "root", "time (us)", "algbw",
          "busbw", "#wrong", "", "", "", "", "", "", "(GB/s)", "(GB/s)");
    text += fmt::format("  {:>12} {:>12} {:>6} {:>6} {:>5} {:>12.2f} {:>8.3f} {:>8.3f} {:>7}\n",
                        r.bytes, r.bytes / sizeof(float), "float", r.redop, r.root, 1e6 * r.seconds,
                        r.alg_gb_per_s, r.bus_gb_per_s, r.wrong);
    sum += r.bus_gb_per_s;
  }
  if (report.comparison) text += to_text(*report.comparison);
  text += "RESULT: bus bandwidth with the largest buffers of each table\n";
  for (const CollectiveRow& r : largest)
    text += fmt::format("  {:<14} along {:<4} {:>9.3f} GB/s with {}, by {}\n", r.name, r.axis,
                        r.bus_gb_per_s, format_bytes(static_cast<double>(r.bytes)), r.transport);
  return text + fmt::format(
                    "# avg bus bandwidth: {:.4f} GB/s\n"
                    "{}: {} of {} rows, {} wrong values{}\n",
                    sum / static_cast<double>(report.rows.size()),
                    report.valid() ? "VALID" : "INVALID", report.rows.size(), report.rows.size(),
                    report.wrong(), noisy(report.noise));
}

}  // namespace choir
