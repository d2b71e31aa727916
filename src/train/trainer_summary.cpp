// Trainer: what a run says at its end.
#include <fmt/core.h>

#include <cmath>

#include "choir/core/process.hpp"
#include "choir/train/trainer.hpp"

namespace choir {
namespace {

std::string loss_text(double loss) {
  return std::isfinite(loss) && loss > 0 ? fmt::format("{:.4f}", loss) : "not measured";
}

/// "forward 31.9 %, backward 62.0 %, ..."
std::string shares(const PhaseTotals& phases) {
  std::string text;
  if (phases.steps == 0) return "no steps";
  for (int i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    text += fmt::format("{}{} {:.1f} %", i ? ", " : "", name_of(phase),
                        100 * phases.of(phase) / phases.total());
  }
  return text;
}

}  // namespace

std::string Trainer::summary() const {
  const double wall = now_seconds() - started_;
  const double stepping = all_steps_.total();
  const bool speech = deck_.model.speech();
  const double amount = speech ? all_content_.audio_seconds : all_content_.targets;
  const auto mib = [](std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::string text = fmt::format(
      "summary:\n"
      "  steps            {} ({} now), {} {} used, {} updates\n"
      "  loss             {}\n"
      "  validation loss  {}\n"
      "  best validation  {}\n",
      progress_.step, progress_.step - first_step_, progress_.consumed_samples,
      speech ? "utterances" : "sequences", progress_.updates, loss_text(last_.loss),
      loss_text(last_val_loss_), loss_text(progress_.best_val_loss));
  text += fmt::format(
      "  speed            {:.0f} {} over {} of stepping\n"
      "  phases           {}\n"
      "  wall time        {} (evaluation and samples {:.1f} %, checkpoints {:.1f} %)\n",
      stepping > 0 ? amount / stepping : 0.0, speech ? "s of audio/s" : "tokens/s",
      format_duration(stepping), shares(all_steps_), format_duration(wall),
      100 * evaluation_seconds_ / wall, 100 * checkpointer_->seconds() / wall);
  text += fmt::format(
      "  memory           arena peak {} of {} planned, {} resident\n"
      "  run directory    {}\n"
      "  checkpoint       {}{}",
      mib(engine_->instance().arena().peak()), mib(plan_.arena_bytes),
      mib(static_cast<std::size_t>(resident_bytes())), directory_.path(),
      checkpointer_->last_path().empty() ? "none" : checkpointer_->last_path(),
      checkpointer_->failures() > 0 ? fmt::format(" ({} failed)", checkpointer_->failures()) : "");
  if (const std::string drawn = data_->drawn(); !drawn.empty())
    text += "\n  drawn            " + drawn;
  return text;
}

}  // namespace choir
