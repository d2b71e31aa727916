// The report of `choir bench ops`, `gemm` and `attention`.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>

#include "choir/core/json_value.hpp"
#include "choir/lab/bench/bench_report.hpp"
#include "choir/train/step/build_info.hpp"

namespace choir {
namespace {

nlohmann::ordered_json ops_provenance(const BenchReport& report) {
  auto json =
      parsed_ordered_json(report.provenance.empty() ? build_provenance() : report.provenance);
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
  return text + (report.valid()
                     ? fmt::format("VALID: {} rows\n", report.rows.size())
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
                            {"rate", r.rate()},
                            {"ceiling", r.ceiling},
                            {"fraction", r.fraction()},
                            {"error", r.error},
                            {"allowed", r.allowed},
                            {"calls", r.calls},
                            {"valid", r.valid()}});
  json["ceilings"] = report.ceilings;
  json["remarks"] = report.remarks;
  json["provenance"] = ops_provenance(report);
  return dumped(json) + "\n";
}

std::string to_csv(const BenchReport& report) {
  const nlohmann::ordered_json from = ops_provenance(report);
  const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
  std::string text =
      "bench,name,variant,shape,dtype,us,rate,unit,fraction,error,allowed,verdict,calls,device,"
      "threads,revision,date\n";
  for (const ops::BenchRow& r : report.rows) {
    const bool bytes = r.unit == ops::BenchUnit::bytes;
    text +=
        fmt::format("{},{},{},{},{},{:.3f},{:.3f},{},{:.4f},{:.3e},{:.3e},{},{},{},{},{},{}\n",
                    report.bench, r.name, r.variant, quoted(r.shape), name_of(r.dtype),
                    1e6 * r.seconds, r.rate() / (bytes ? 1e9 : 1e12), bytes ? "GB/s" : "TFLOP/s",
                    r.fraction(), r.error, r.allowed, r.valid() ? "VALID" : "INVALID", r.calls,
                    quoted(report.device), from["threads"].get<int>(),
                    from["revision"].get<std::string>(), from["date"].get<std::string>());
  }
  return text;
}

}  // namespace choir
