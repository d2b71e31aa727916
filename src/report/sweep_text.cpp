// Formats of a sweep: table, CSV and JSON lines. Pure.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/report/sweep.hpp"

namespace choir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMebibyte = 1 << 20;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : "";
}

std::string cell(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{:.4f}", *value) : "";
}

/// The MFU; nullopt if no ceilings were measured.
std::optional<double> known(double mfu) {
  return mfu > 0 ? std::optional(mfu) : std::nullopt;
}

/// A field of the provenance as text; lists and objects as JSON.
std::string origin(const SweepRow& row, const char* name) {
  if (row.refused()) return "";
  const json& from = row.run.at("provenance");
  if (!from.contains(name)) return "";
  const json& value = from[name];
  return value.is_string() ? value.get<std::string>() : dumped(value);
}

std::string note(const SweepRow& row, const char* name) {
  return row.refused() ? "" : row.run.at("notes").value(name, "");
}

const char* cost_unit(const SweepRow& row) {
  if (row.measures_audio()) return row.gpu() ? "GPU-s/h of audio" : "core-s/h of audio";
  return row.gpu() ? "GPU-s/Mtoken" : "core-s/Mtoken";
}

/// The hardware of the rows, "AMD EPYC 9654; NVIDIA H200"; "" if they do not record it, as in older
/// programs.
std::string machines(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const SweepRow& row : sweep.rows)
    for (const char* kind : {"cpus", "gpus"}) {
      if (row.refused() || !row.run.at("provenance").contains(kind)) continue;
      for (std::string name : row.run["provenance"][kind]) {
        // The name of a GPU ends with its UUID, which is removed.
        if (std::string_view(kind) == "gpus") name.resize(std::min(name.size(), name.rfind(' ')));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  return join(names, "; ");
}

std::string verdict(const SweepRow& row) {
  return row.valid() ? "VALID" : row.refused() ? "REFUSED" : "INVALID";
}

double memory_of(const json& run) {
  const char* field = run.at("device") == "cpu" ? "grown_memory" : "planned_memory";
  return run.at(field).get<double>() / kMebibyte;
}

std::string measured_columns(const SweepRow& row) {
  const json& run = row.run;
  std::size_t steps = 0;
  for (const auto& list : row.step_seconds) steps += list.size();
  std::string text = fmt::format(
      "{},{},{},{:.0f},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.1f},{:.1f},{},{},{}",
      run.at("nodes").get<int>(), run.at("threads").get<int>(), run.at("accum").get<int>(),
      run.at("tokens").get<double>(), run.at("parameters").get<std::int64_t>(),
      run.at("precision").get<std::string>(), run.at("device").get<std::string>(),
      row.step_seconds.size(), steps, 1e3 * row.median, 1e3 * row.p10, 1e3 * row.p90, row.rate(),
      row.rate() / static_cast<double>(row.point.ranks), cell(row.speedup), cell(row.efficiency),
      cell(row.serial_fraction));
  text += fmt::format(",{:.2f},{}", 100 * row.share(Phase::data), percent(row.communication));
  for (int a = 0; a < kAxes; ++a)
    text += fmt::format(",{:.2f}", 100 * row.share(static_cast<Axis>(a)));
  for (const double seconds : row.phases) text += fmt::format(",{:.4f}", 1e3 * seconds);
  text += fmt::format(",{:.4f},{},{},{:.1f},{:.2f},{}", row.cost(), cost_unit(row),
                      cell(known(run.at("mfu").get<double>())), memory_of(run), 100 * row.idle(),
                      cell(row.loss_end));
  const Departure &off = row.departure, &most = row.allowed;
  for (const double value : {off.loss, most.loss, off.norm, most.norm, off.gradient, most.gradient})
    text += std::isfinite(value) ? fmt::format(",{:.1e}", value) : ",";
  text += run.at("oversubscribed").get<bool>() ? ",1" : ",0";
  text += row.quiet() ? ",0" : ",1";
  const auto energy = run.find("j_per_token");
  return text + (energy != run.end() && energy->is_number()
                     ? fmt::format(",{:.6g}", energy->get<double>())
                     : ",");
}

}  // namespace

std::string to_csv(const Sweep& sweep) {
  const std::string measured =
      "nodes,threads,accum,tokens,params,precision,device,repeats,steps,step_ms_med,step_ms_p10,"
      "step_ms_p90,tok_s,tok_s_rank,speedup,efficiency,karp_flatt,data_pct,comm_pct,tp_pct,cp_pct,"
      "dp_pct,pp_pct,data_ms,forward_ms,backward_ms,comm_ms,optimizer_ms,other_ms,cost,cost_unit,"
      "mfu,mem_mib,bubble_pct,loss_end,loss_off,loss_allowed,norm_off,norm_allowed,gradient_off,"
      "gradient_allowed,oversubscribed,noisy,j_per_token";
  const auto gaps = static_cast<std::size_t>(std::count(measured.begin(), measured.end(), ','));
  std::string text = "sweep,layout,ranks,micro_batch,global_batch,valid," + measured +
                     ",why,deck,overrides,deck_crc32c,date,git,compiler,march,mpi,cuda,driver_cuda,"
                     "nccl,hosts,cpus,cpu_clocks,gpus,gpu_clocks,job,launcher,environment\n";
  for (const SweepRow& row : sweep.rows) {
    const SweepPoint& p = row.point;
    text +=
        fmt::format("{},{},{},{},{},{},{}", p.sweep, p.layout, p.ranks, p.micro, p.global,
                    verdict(row), row.refused() ? std::string(gaps, ',') : measured_columns(row));
    text += "," + quoted(join(row.complaints, "; ")) + "," +
            quoted(row.refused() ? "" : row.run.at("deck").get<std::string>());
    for (const char* name :
         {"overrides", "deck_crc32c", "date", "revision", "compiler", "march", "mpi", "cuda",
          "driver_cuda", "nccl", "hosts", "cpus", "cpu_clocks", "gpus"})
      text += "," + quoted(origin(row, name));
    text += "," + quoted(note(row, "gpu_clocks")) + "," + quoted(origin(row, "job")) + "," +
            quoted(note(row, "launcher")) + "," + quoted(origin(row, "environment")) + "\n";
  }
  return text;
}

std::string to_json_lines(const Sweep& sweep) {
  std::string text;
  for (const SweepRow& row : sweep.rows) {
    const SweepPoint& p = row.point;
    ordered_json line{{"sweep", p.sweep},       {"layout", p.layout},       {"ranks", p.ranks},
                      {"micro_batch", p.micro}, {"global_batch", p.global}, {"valid", verdict(row)},
                      {"why", row.complaints},  {"noise", row.noise}};
    if (!row.refused()) {
      line.update({{"step_seconds_median", row.median},
                   {"step_seconds_p10", row.p10},
                   {"step_seconds_p90", row.p90},
                   {"rate", row.rate()},
                   {"cost", row.cost()},
                   {"cost_unit", cost_unit(row)}});
      const auto add = [&](const char* name, const std::optional<double>& value) {
        if (value) line[name] = *value;
      };
      add("speedup", row.speedup);
      add("efficiency", row.efficiency);
      add("karp_flatt", row.serial_fraction);
      add("communication", row.communication);
      const auto off_and_allowed = [](double off, double allowed) {
        return json{{"off", off}, {"allowed", allowed}};  // non-finite values become null
      };
      line["loss_from_one_rank"] = off_and_allowed(row.departure.loss, row.allowed.loss);
      line["norm_from_one_rank"] = off_and_allowed(row.departure.norm, row.allowed.norm);
      line["gradients_from_one_rank"] =
          off_and_allowed(row.departure.gradient, row.allowed.gradient);
      line["step_seconds"] = row.step_seconds;
      for (const char* name :
           {"deck", "precision", "device", "device_description", "nodes", "threads", "accum",
            "tokens", "parameters", "oversubscribed", "phases", "communication", "first_losses",
            "first_norms", "notes", "provenance"})
        line[std::string(name) == "communication" ? "axes" : name] = row.run.at(name);
    }
    text += dumped(line) + "\n";
  }
  return text;
}

std::string to_table(const Sweep& sweep) {
  std::string text, current;
  for (const SweepRow& row : sweep.rows) {
    const SweepPoint& p = row.point;
    if (p.sweep != current) {
      current = p.sweep;
      text += fmt::format(
          "{}{} sweep: {}\n  {:<10} {:>5} {:>6} {:>6} {:>10} {:>19} {:>11} {:>7} {:>6} {:>7} {:>6} "
          "{:>6} {:>10}  {}\n",
          text.empty() ? "" : "\n", p.sweep,
          p.sweep == "weak"     ? "the global batch grows with the ranks"
          : p.sweep == "strong" ? "one global batch"
                                : "the batch grows, the ranks stay; efficiency: of the best rate",
          "layout", "ranks", "micro", "global", "step ms", "p10 to p90",
          row.measures_audio() ? "x realtime" : "tokens/s", "speedup", "eff %", "serial", "comm %",
          "data %", cost_unit(row), "verdict");
    }
    if (row.refused()) {
      text += fmt::format("  {:<10} {:>5} {:>6} {:>6} {}\n", p.layout, p.ranks, p.micro, p.global,
                          join(row.complaints, "; "));
      continue;
    }
    text += fmt::format(
        "  {:<10} {:>5} {:>6} {:>6} {:>10.3f} {:>8.3f} - {:>8.3f} {:>11.0f} {:>7} {:>6} {:>7} "
        "{:>6} "
        "{:>6.1f} {:>10.3f}  {}{}{}{}\n",
        p.layout, p.ranks, p.micro, p.global, 1e3 * row.median, 1e3 * row.p10, 1e3 * row.p90,
        row.rate(), row.speedup ? fmt::format("{:.2f}", *row.speedup) : "-",
        row.efficiency ? percent(row.efficiency) : "-",
        row.serial_fraction ? fmt::format("{:.3f}", *row.serial_fraction) : "-",
        row.communication ? percent(row.communication) : "-", 100 * row.share(Phase::data),
        row.cost(), verdict(row),
        row.run.at("oversubscribed").get<bool>() ? ", oversubscribed" : "",
        row.valid() ? "" : ": " + join(row.complaints, "; "),
        row.quiet() ? "" : ", NOISY: " + row.noise);
  }
  if (std::ranges::any_of(sweep.rows,
                          [](const SweepRow& row) { return bool(row.serial_fraction); }))
    text +=
        "\nserial: the part of the work that does not get faster with more ranks, by Karp and "
        "Flatt: "
        "(1/speedup - 1/ranks) / (1 - 1/ranks); above 1, the ranks are slower than one\n";
  if (std::ranges::any_of(sweep.rows, [](const SweepRow& row) { return bool(row.communication); }))
    text +=
        "\ncomm %: the cost of communication, by which the step is longer than the same step with "
        "--no-comm; it is neither the phase comm nor the waits along an axis, which are parts of "
        "the step\n";
  const std::string on = machines(sweep);
  if (!on.empty())
    text += "\nmeasured on " + on + "; clocks are in the CSV and the JSON lines of the sweep\n";
  return text;
}

}  // namespace choir
