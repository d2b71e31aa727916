#include "src/train/loop/observers.hpp"

#include "choir/core/text.hpp"

namespace choir {

void Observers::follow(const Engine& engine, const Progress& progress) {
  clock.listen([this, &engine, &progress, first = progress.step](Phase ended, double start,
                                                                 double end, Phase next) {
    trace.span(name_of(ended), start, end);
    watch.span(ended, start, end);
    // A pipeline stage reports more: the action and the micro-batch that it is working on.
    std::string_view doing = engine.doing();
    char text[64];
    if (doing.empty()) doing = print_into(text, "step {}: {}", progress.step + 1, name_of(next));
    watch.step(doing, progress.step - first);
    faults.in_phase(progress.step + 1, name_of(next));
  });
}

void Observers::before_step(Engine& engine, std::int64_t step) {
  faults.before_step(step);
  if (step == trace.first()) engine.instance().device().let_profilers_look(true);
}

void Observers::after_step(Engine& engine, std::int64_t step) {
  if (step == trace.last()) engine.instance().device().let_profilers_look(false);
  faults.flip_weight(step, engine.instance());
  watch.after_step(engine, step);
}

void Observers::write_trace(const RunDirectory& directory, Communicator& world) {
  if (trace.complete()) trace.write(directory.path() + "/profile.json", world);
}

}  // namespace choir
