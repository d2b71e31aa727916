#include "src/train/loop/start_screen.hpp"

#include <omp.h>

#include <algorithm>
#include <unordered_set>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/process.hpp"
#include "choir/core/text.hpp"
#include "choir/device/cuda.hpp"
#include "choir/models/family.hpp"

namespace choir {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 13;  // columns of the labels

/// "vm", "n1, n2, n3 ... n64": each once, in the order of the ranks.
std::string hosts_text(const std::vector<std::string>& host_of_rank) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> hosts;
  std::unordered_set<std::string_view> known;
  for (const std::string& host : host_of_rank)
    if (known.insert(host).second) hosts.push_back(host);
  if (hosts.size() <= kNamed) return join(hosts, ", ");
  const std::string last = hosts.back();
  hosts.resize(kNamed - 1);
  return join(hosts, ", ") + " ... " + last;
}

}  // namespace

void StartScreen::show(std::string_view label, std::string_view text) {
  std::string block;
  for (const std::string& line : split(text, '\n')) block += wrap(line, kColumns, kIndent);
  if (block.ends_with('\n')) block.pop_back();
  const std::string head = fmt::format("  {:<{}}", label, kIndent - 2);
  screen_ += (screen_.empty() ? "" : "\n") + head + block.substr(std::min(block.size(), kIndent));
}

void StartScreen::add(std::string_view text) {
  if (text.empty()) return;
  details_ += text;
  if (!text.ends_with('\n')) details_ += '\n';
}

std::string ranks_line(Mesh& mesh, const Device& device) {
  const std::vector<std::string> hosts = gather_texts(mesh.world(), host_name());
  return fmt::format("{} on {} ({}), {} each, {}", mesh.world().size(),
                     counted(mesh.nodes(), "node"), hosts_text(hosts),
                     counted(omp_get_max_threads(), "thread"), device.description());
}

std::string first_lines(const std::string& text, std::size_t most) {
  std::vector<std::string> lines = split(text, '\n');
  if (lines.size() <= most) return text;
  const std::size_t more = lines.size() - most;
  lines.resize(most);
  return join(lines, "\n") + fmt::format("\n({} more lines)", more);
}

std::string model_line(Engine& engine) {
  const ModelConfig& config = engine.options().model;
  const ParameterSet& parameters = engine.instance().parameters();
  const ModelFamily& family = config.family();
  const std::string frozen =
      parameters.count_frozen() > 0
          ? fmt::format(", {} of them frozen", format_count(parameters.count_frozen()))
          : "";
  return fmt::format("{}: {}\n{} parameters{}", family.name(), family.describe(config),
                     format_count(parameters.count()), frozen);
}

std::string batch_line(Engine& engine) {
  const EngineOptions& o = engine.options();
  const ModelFamily& family = o.model.family();
  const std::int64_t ranks = engine.mesh().along(Axis::data).size();
  if (!family.fixed_shape())
    return fmt::format("{} micro-batches a step = {} x {}", o.micro_batches * ranks,
                       o.micro_batches, counted(ranks, "data-parallel rank"));
  const std::int64_t sequences = o.micro_batch_size * o.micro_batches * ranks;
  return fmt::format("{} sequences ({} tokens) a step = {} x {} micro-batches x {}",
                     format_count(sequences),
                     format_count(sequences * family.shape(o.model, 1).tokens), o.micro_batch_size,
                     o.micro_batches, counted(ranks, "data-parallel rank"));
}

std::string training_line(const Deck& deck, const EngineOptions& options, std::int64_t first_step) {
  return fmt::format(
      "steps {} to {} in {}, {}, {} learning rate with peak {:.4g}, {} warm-up steps", first_step,
      deck.train.max_steps, deck.train.precision, deck.optimizer.name, deck.optimizer.schedule,
      options.schedule.peak, options.schedule.warmup_steps);
}

std::string memory_line(const StepPlan& plan, Mesh& mesh, const Device& device) {
  auto largest = static_cast<double>(plan.memory.total());
  mesh.world().all_reduce(&largest, 1, DType::f64, ReduceOp::max);
  if (const cuda::Card* card = cuda::card_of(device))
    return fmt::format("{} on the fullest rank, of {} of its GPU", format_bytes(largest),
                       format_bytes(static_cast<double>(card->memory)));
  return fmt::format("{} on the fullest rank; the node has {} for {}", format_bytes(largest),
                     format_bytes(node_memory()), counted(mesh.node().size(), "rank"));
}

std::string transport_line(const std::vector<AxisSpeed>& speeds) {
  std::vector<std::string> texts;
  for (const AxisSpeed& axis : speeds)
    texts.push_back(fmt::format("{} by {}, {:.2f} GB/s", short_name(axis.axis), axis.transport,
                                axis.bus_gb_per_s));
  return texts.empty() ? "single rank, no communication" : join(texts, "; ");
}

std::string saves_line(const Deck& deck) {
  const CheckpointSection& c = deck.checkpoint;
  const std::string saves = c.interval == 0 ? "no checkpoints"
                            : c.interval == CheckpointSection::kAutoInterval
                                ? "checkpoints at the best interval"
                                : fmt::format("a checkpoint every {} steps", c.interval);
  return saves + (deck.eval.interval == 0
                      ? ", no evaluation"
                      : fmt::format(", an evaluation every {} steps", deck.eval.interval));
}

std::string run_line(const RunDirectory& directory) {
  return fmt::format(
      "{} (log.txt, metrics.jsonl, deck.json, checkpoints/)\n"
      "{}: every key, the module tree, hosts, the memory plan, the meaning of the lines below",
      directory.path(), directory.start());
}

}  // namespace choir
