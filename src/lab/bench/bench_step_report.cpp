// Verdict of a StepBench, and its formats: text, JSON and CSV. Pure.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include "src/core/json_value.hpp"

#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/run/energy_meter.hpp"

namespace choir {
namespace {

constexpr double kBytesPerMiB = 1 << 20;

double mean(const double* first, std::size_t n) {
  return std::accumulate(first, first + n, 0.0) / static_cast<double>(n);
}

/// True if the loss rose by more than the noise of single batches: the mean of the last third is
/// compared with that of the first, with three standard errors of their difference.
bool rose(const std::vector<double>& losses) {
  const std::size_t n = losses.size() / 3;
  if (n == 0) return false;
  const double* tail = losses.data() + losses.size() - n;
  const double first = mean(losses.data(), n), last = mean(tail, n);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i)
    squares += std::pow(losses[i] - first, 2) + std::pow(tail[i] - last, 2);
  const auto count = static_cast<double>(n);
  const double error = std::sqrt(squares / count / std::max(1.0, count - 1));
  return last - first > 3 * error + 0.02 * first;
}

std::string phase_table(const StepBench& b) {
  std::string text = "  phase          min ms  median ms     max ms   of step   (over the ranks)\n";
  for (int p = 0; p < kPhases; ++p) {
    const Spread& s = b.phases[static_cast<std::size_t>(p)];
    text += fmt::format("  {:<10} {:>10.3f} {:>10.3f} {:>10.3f}   {:>5.1f} %\n",
                        name_of(static_cast<Phase>(p)), 1e3 * s.min, 1e3 * s.median, 1e3 * s.max,
                        100 * s.median / b.median_seconds);
  }
  return text;
}

std::string floor_table(const StepBench& b) {
  const double rate = b.rates.flops_per_second, copy = b.rates.bytes_per_second;
  const auto line = [](const char* what, double amount, const char* unit, double seconds) {
    return fmt::format("  {:<40} {:>10.3f} {:<5} {:>10.3f} ms\n", what, amount / 1e9, unit,
                       1e3 * seconds);
  };
  return fmt::format(
             "floor of a rank's step = FLOPs at {:.3f} TFLOP/s ({} product of {}^3) + bytes at "
             "{:.1f} GB/s\n(the better of a copy, {:.1f}, and an update in place, {:.1f}); per "
             "rank, all ranks at once, same run\n",
             rate / 1e12, b.precision, b.product_extent, copy / 1e9, b.copy_rate / 1e9,
             b.update_rate / 1e9) +
         (b.measures_audio()
              ? line("3 x forward of frames that count", b.work.gemm_flops, "GFLOP",
                     b.work.gemm_flops / rate)
              : line("6 x weights in products x tokens", b.work.gemm_flops, "GFLOP",
                     b.work.gemm_flops / rate) +
                    line("12 D x causal pairs x heads x layers", b.work.attention_flops, "GFLOP",
                         b.work.attention_flops / rate)) +
         line("update: parameters, state, gradient, copy", b.work.optimizer_bytes, "GB",
              b.work.optimizer_bytes / copy) +
         line("gradient norm: 1 word a parameter", b.work.norm_bytes, "GB",
              b.work.norm_bytes / copy) +
         fmt::format("  {:<40} {:>10} {:<5} {:>10.3f} ms\n", "floor", "", "",
                     1e3 * b.floor_seconds);
}

std::string batch_text(const StepBench& b) {
  if (!b.measures_audio())
    return fmt::format("micro-batch {} x accumulation {}, {} tokens a step", b.micro, b.accum,
                       b.tokens);
  return fmt::format("{} micro-batches, {:.0f} s of speech with {} targets a step", b.global,
                     b.audio_seconds, b.tokens);
}

/// "MFU: 6 N + 12 L C T = 0.62 GFLOP a token (nanoGPT's convention); 12.3 % of ..."
std::string mfu_line(const StepBench& b) {
  std::string text =
      b.measures_audio()
          ? fmt::format("MFU: {:.4f} GFLOP a second of audio", b.step_flops / b.audio_seconds / 1e9)
          : fmt::format("MFU: 6 N + 12 L C T = {:.4f} GFLOP a token (nanoGPT's convention)",
                        b.flops_per_token() / 1e9);
  text += fmt::format(": {:.1f} % of {:.2f} TFLOP/s, the measured product", 100 * b.mfu,
                      b.peak_flops / 1e12);
  if (b.nominal_flops > 0)
    text += fmt::format("; {:.1f} % of {:.1f} TFLOP/s, the makers' figure", 100 * b.nominal_mfu,
                        b.nominal_flops / 1e12);
  if (b.hfu_over_mfu > 1)
    text +=
        fmt::format("\nHFU, with what train.recompute runs again: {:.3f} x MFU", b.hfu_over_mfu);
  return text + "\n";
}

std::string noise_text(const GradientNoise& n) {
  if (n.probes == 0) return "";
  if (!n.known())
    return fmt::format(
        "gradient noise scale after {} steps: lost in {} pairs of batches of {} and {}\n",
        n.after_steps, n.probes, n.small, n.large);
  return fmt::format(
      "gradient noise scale after {} steps: {:.1f} +- {:.1f} sequences (|G|^2 {:.3e}, tr(S) "
      "{:.3e}; "
      "{} pairs of batches of {} and {})\n",
      n.after_steps, n.scale, n.error, n.signal, n.noise, n.probes, n.small, n.large);
}

nlohmann::ordered_json noise_json(const GradientNoise& n) {
  return {{"scale", n.scale},   {"error", n.error},
          {"signal", n.signal}, {"noise", n.noise},
          {"probes", n.probes}, {"small", n.small},
          {"large", n.large},   {"after_steps", n.after_steps}};
}

nlohmann::ordered_json pipeline_json(const PipelineBench& b) {
  nlohmann::ordered_json json{{"schedule", b.schedule},
                              {"exchange", b.exchange},
                              {"stages", b.shape.stages},
                              {"virtual_stages", b.shape.chunks},
                              {"micro_batches", b.shape.micro_batches},
                              {"makespan_seconds", b.makespan},
                              {"simulated_seconds", b.simulated},
                              {"idle", b.idle()},
                              {"bubble", b.bubble()},
                              {"even_bubble", b.even_bubble()}};
  for (const StageLoss& s : b.stages)
    json["losses"].push_back(
        {{"busy_seconds", s.busy}, {"bubble_seconds", s.bubble}, {"exposed_seconds", s.exposed}});
  for (const ChunkCost& c : b.chunks)
    json["costs"].push_back({{"forward", c.forward},
                             {"backward", c.backward},
                             {"backward_input", c.backward_input},
                             {"backward_weight", c.backward_weight}});
  return json;
}

nlohmann::ordered_json step_provenance(const StepBench& b) {
  return parsed_ordered_json(b.provenance.empty() ? build_provenance(MpiSession::library_version())
                                                  : b.provenance);
}

}  // namespace

double StepBench::exposed_seconds(Axis which) const {
  for (const AxisTraffic& t : traffic)
    if (t.axis == short_name(which)) return t.exposed_seconds;
  return 0;
}

std::vector<std::string> complaints_of(const StepBench& b) {
  std::vector<std::string> list;
  if (!std::all_of(b.losses.begin(), b.losses.end(), [](double x) { return std::isfinite(x); }))
    list.emplace_back("the loss is not finite");
  else if (b.communicated && rose(b.losses))
    list.push_back(
        fmt::format("the loss rose from {:.4f} to {:.4f}", b.losses.front(), b.losses.back()));
  // If shapes differ, a rank need not see its largest one.
  if (b.fixed_shape ? b.peak_arena != b.planned_arena : b.peak_arena > b.planned_arena)
    list.push_back(fmt::format("the arena peaked at {} bytes, {} were planned", b.peak_arena,
                               b.planned_arena));
  // GPU memory does not belong to the process: there only the arena can be compared with its plan.
  const auto difference = static_cast<double>(std::abs(b.grown_memory - b.planned_memory));
  if (b.host_visible && b.communicated &&
      difference > std::max(0.05 * static_cast<double>(b.planned_memory), 64 * kBytesPerMiB))
    list.push_back(fmt::format("resident memory grew by {:.1f} MiB, {:.1f} MiB were planned",
                               static_cast<double>(b.grown_memory) / kBytesPerMiB,
                               static_cast<double>(b.planned_memory) / kBytesPerMiB));
  return list;
}

std::string to_string(const StepBench& b) {
  const auto [fastest, slowest] = std::minmax_element(b.step_seconds.begin(), b.step_seconds.end());
  std::string text = fmt::format(
      "bench step {} {} on {}: {} x {}, {}, {}, {} parameters\n{} steps timed after "
      "{} of warm-up: median {:.3f} ms, {:.3f} to {:.3f} (slowest rank's)\n",
      b.deck, b.precision, b.device_description, counted(b.ranks, "rank"),
      counted(b.threads, "thread"), b.layout, batch_text(b), format_count(b.parameters),
      b.step_seconds.size(), b.warmup_steps, 1e3 * b.median_seconds, 1e3 * *fastest,
      1e3 * *slowest);
  if (!b.communicated)
    text += "--no-comm: nothing was sent; the losses are wrong, the times are valid\n";
  if (b.oversubscribed)
    text += fmt::format("oversubscribed: {} x {} share {}\n", counted(b.ranks / b.nodes, "rank"),
                        counted(b.threads, "thread"), counted(b.cores, "processor"));
  text += phase_table(b);
  for (const StepBench::AxisTraffic& t : b.traffic)
    text += fmt::format(
        "waits along {} ({}, {} ranks): {:.3f} ms a step ({:.1f} %), in whatever phase, for {:.1f} "
        "MiB in {:.1f} calls{}\n",
        t.axis, t.transport, t.ranks, 1e3 * t.exposed_seconds,
        100 * t.exposed_seconds / b.median_seconds, t.bytes / kBytesPerMiB, t.calls,
        t.axis == short_name(Axis::pipeline) ? ", the bubble included" : "");
  if (!b.traffic.empty())
    text +=
        "comm is the phase after backward in which ranks wait for the sums of gradients; waits "
        "along "
        "an axis are those for other ranks in all phases\n";
  text += to_string(b.pipeline);
  if (b.floor_seconds > 0) text += floor_table(b);
  text += fmt::format(
      "memory of a rank: {:.1f} MiB planned on the {}; arena peak {} of {} planned; resident "
      "memory grew by {:.1f} MiB; heap growth during the timed steps: {}\nloss {:.4f} -> "
      "{:.4f}\n",
      static_cast<double>(b.planned_memory) / kBytesPerMiB, b.device,
      format_bytes(static_cast<double>(b.peak_arena)),
      format_bytes(static_cast<double>(b.planned_arena)),
      static_cast<double>(b.grown_memory) / kBytesPerMiB,
      format_bytes(static_cast<double>(b.heap_growth)), b.losses.front(), b.losses.back());
  if (b.energy)
    text += fmt::format("energy of {}: {} a step, {} a token\n", b.energy_text,
                        format_energy(*b.energy), format_energy(b.energy_of_token()));
  else
    text += fmt::format("energy is not readable here: {}\n", b.energy_text);
  if (b.peak_flops > 0) text += mfu_line(b);
  text += noise_text(b.noise);
  text += b.measures_audio() ? fmt::format("{:.0f} x real time   {:.0f} per rank", b.real_time(),
                                           b.real_time() / b.ranks)
                             : fmt::format("{:.0f} tokens/s   {:.0f} per rank",
                                           b.tokens_per_second(), b.tokens_per_second() / b.ranks);
  if (b.floor_seconds > 0)
    text += fmt::format("   MFU {:.1f} %   {:.2f} x the floor",
                        100 * (b.nominal_mfu > 0 ? b.nominal_mfu : b.mfu), b.floor_ratio());
  text += "\n";
  return text +
         (b.valid() ? "VALID" + noisy(b.disturbance) : "INVALID: " + join(b.complaints, "; "));
}

std::string to_json(const StepBench& b) {
  nlohmann::ordered_json json{{"bench", "step"},
                              {"deck", b.deck},
                              {"precision", b.precision},
                              {"device", b.device},
                              {"device_description", b.device_description},
                              {"layout", b.layout},
                              {"ranks", b.ranks},
                              {"threads", b.threads},
                              {"micro_batch", b.micro},
                              {"accum", b.accum},
                              {"global_batch", b.global},
                              {"tokens", b.tokens},
                              {"parameters", b.parameters},
                              {"warmup_steps", b.warmup_steps},
                              {"step_seconds", b.step_seconds},
                              {"losses", b.losses},
                              {"first_losses", b.first_losses},
                              {"first_norms", b.first_norms},
                              {"first_gradients", b.first_gradients},
                              {"communicated", b.communicated},
                              {"nodes", b.nodes},
                              {"cores", b.cores},
                              {"oversubscribed", b.oversubscribed},
                              {"median_seconds", b.median_seconds},
                              {"tokens_per_second", b.tokens_per_second()},
                              {"flops_per_token", b.flops_per_token()},
                              {"audio_seconds", b.audio_seconds},
                              {"real_time", b.real_time()},
                              {"step_flops", b.step_flops},
                              {"mfu", b.mfu},
                              {"hfu_over_mfu", b.hfu_over_mfu},
                              {"peak_flops", b.peak_flops},
                              {"nominal_mfu", b.nominal_mfu},
                              {"nominal_flops", b.nominal_flops},
                              {"gemm_flops_per_second", b.rates.flops_per_second},
                              {"copy_bytes_per_second", b.copy_rate},
                              {"update_bytes_per_second", b.update_rate},
                              {"work",
                               {{"gemm_flops", b.work.gemm_flops},
                                {"attention_flops", b.work.attention_flops},
                                {"optimizer_bytes", b.work.optimizer_bytes},
                                {"norm_bytes", b.work.norm_bytes}}},
                              {"floor_seconds", b.floor_seconds},
                              {"floor_ratio", b.floor_ratio()},
                              {"planned_arena", b.planned_arena},
                              {"peak_arena", b.peak_arena},
                              {"planned_memory", b.planned_memory},
                              {"grown_memory", b.grown_memory},
                              {"heap_growth", b.heap_growth},
                              {"valid", b.valid()},
                              {"complaints", b.complaints},
                              {"disturbance", b.disturbance},
                              {"notes", b.notes}};
  json["provenance"] = step_provenance(b);
  if (b.energy) json["energy_j"] = *b.energy, json["j_per_token"] = b.energy_of_token();
  if (b.noise.probes > 0) json["gradient_noise"] = noise_json(b.noise);
  for (int p = 0; p < kPhases; ++p) {
    const Spread& s = b.phases[static_cast<std::size_t>(p)];
    json["phases"][name_of(static_cast<Phase>(p))] = {
        {"min", s.min}, {"median", s.median}, {"max", s.max}};
  }
  json["communication"] = nlohmann::ordered_json::array();
  for (const StepBench::AxisTraffic& t : b.traffic)
    json["communication"].push_back({{"axis", t.axis},
                                     {"transport", t.transport},
                                     {"ranks", t.ranks},
                                     {"calls", t.calls},
                                     {"bytes", t.bytes},
                                     {"exposed_seconds", t.exposed_seconds}});
  if (!b.pipeline.empty()) json["pipeline"] = pipeline_json(b.pipeline);
  return dumped(json);
}

std::string csv_header() {
  return "deck,precision,device,ranks,threads,layout,micro_batch,accum,global_batch,tokens,params,"
         "steps,step_ms_med,step_ms_min,step_ms_max,tok_s,tok_s_rank,mfu,nominal_mfu,floor_ms,"
         "floor_ratio,data_ms,forward_ms,backward_ms,comm_ms,optimizer_ms,other_ms,tp_ms,cp_ms,dp_"
         "ms,pp_ms,"
         "gemm_tflops,memory_gb_s,mem_mib,loss_end,real_time,valid,revision,date";
}

std::string to_csv(const StepBench& b) {
  const auto [fastest, slowest] = std::minmax_element(b.step_seconds.begin(), b.step_seconds.end());
  std::string row = fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.1f},{:.1f},{:.4f},{:.4f},{:.4f},"
      "{:.3f}",
      b.deck, b.precision, b.device, b.ranks, b.threads, b.layout, b.micro, b.accum, b.global,
      b.tokens, b.parameters, b.step_seconds.size(), 1e3 * b.median_seconds, 1e3 * *fastest,
      1e3 * *slowest, b.tokens_per_second(), b.tokens_per_second() / b.ranks, b.mfu, b.nominal_mfu,
      1e3 * b.floor_seconds, b.floor_ratio());
  for (const Spread& s : b.phases) row += fmt::format(",{:.4f}", 1e3 * s.median);
  for (int a = 0; a < kAxes; ++a)
    row += fmt::format(",{:.4f}", 1e3 * b.exposed_seconds(static_cast<Axis>(a)));
  const nlohmann::ordered_json from = step_provenance(b);
  return row + fmt::format(",{:.4f},{:.2f},{:.1f},{:.5f},{:.1f},{},{},{}",
                           b.rates.flops_per_second / 1e12, b.rates.bytes_per_second / 1e9,
                           static_cast<double>(b.host_visible ? b.grown_memory : b.planned_memory) /
                               kBytesPerMiB,
                           b.losses.back(), b.real_time(), b.valid() ? "VALID" : "INVALID",
                           from["revision"].get<std::string>(), from["date"].get<std::string>());
}

}  // namespace choir
