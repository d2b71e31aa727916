#include "src/lab/tune/deck_tuning.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "choir/run/training_data.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {

DeckTuning::DeckTuning(MpiSession& session, TuneRequest request)
    : request_(std::move(request)),
      mesh_(Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi)),
      speaks_(session.rank() == 0) {
  text_ = read_everywhere(world(), request_.deck);
  together(world(), [&] {
    plan_case.deck = parse_deck(request_.families, text_, request_.deck, request_.overrides);
    choose_out();
  });
  limit_ = take_place(request_.place, *mesh_, plan_case);
}

DeckVariants DeckTuning::variants() const {
  return DeckVariants(request_.families, text_, request_.deck, request_.overrides, vocabulary);
}

void DeckTuning::choose_out() {
  namespace fs = std::filesystem;
  out_ =
      request_.out.empty() ? fs::path(request_.deck).stem().string() + "_tuned.json" : request_.out;
  std::error_code missing;
  if (fs::equivalent(out_, request_.deck, missing))
    throw DeckError(fmt::format("the tuned deck would replace '{}', with its comments", out_),
                    "name another --out");
  require_regular(out_);
}

void DeckTuning::refuse_synthetic() {
  together(world(), [&] {
    if (plan_case.deck.data.format == DataFormat::synthetic)
      throw DeckError("data.format = \"synthetic\" has no buckets to tune",
                      "name folders of packed data in data.train");
  });
}

void DeckTuning::say(const std::string& text) const {
  if (!speaks_) return;
  print_safely("{}", text);
  std::fflush(stdout);
}

void DeckTuning::say_head() const {
  say(wrap(fmt::format("tune for {}, {}: {} per rank ({})", plan_case.target.name,
                       counted(plan_case.ranks, "rank"), format_bytes(plan_case.target.memory),
                       limit_),
           100, 0) +
      fmt::format("the tuned deck is written to {}{}; {} stays as it is\n", out_,
                  request_.out.empty() ? " (--out FILE for another file)" : "", request_.deck));
}

void DeckTuning::say_verdict() const {
  const auto total = plan->needs();
  say(fmt::format("{}: the fullest rank is {}, {} of {}, {:.0f} %\n",
                  plan->fits() ? "FITS" : "TOO LARGE", plan->fullest().rank, format_bytes(total),
                  format_bytes(plan->memory_limit), 100 * total / plan->memory_limit));
  const TunePlace& place = request_.place;
  say(fmt::format("written: {} (choir plan {} --ranks {}{}{})\n", out_, out_, plan_case.ranks,
                  place.memory.empty() ? "" : " --memory " + as_typed({place.memory}),
                  place.target.empty() ? "" : " --target " + place.target));
}

std::vector<std::string> DeckTuning::decided(
    const std::function<std::vector<std::string>()>& decide) {
  std::string text;
  together(world(), [&] {
    if (speaks_) text = join(decide(), "\n");
  });
  broadcast_text(world(), text);
  return split(text, '\n');
}

void DeckTuning::write(const DeckVariants& variants, const std::vector<std::string>& changes) {
  written_ = written_deck(text_, variants.with(changes));
}

Deck DeckTuning::read_written() const {
  Deck deck = parse_deck(request_.families, written_, out_, {});
  if (std::int64_t& size = deck.family().vocab_size(deck); size == 0) size = vocabulary;
  return deck;
}

void DeckTuning::plan_written() {
  together(world(), [&] {
    if (!speaks_) return;
    plan_case.deck = read_written();
    plan = plan_layout(plan_case);
  });
}

void DeckTuning::store() {
  together(world(), [&] {
    if (!speaks_) return;
    std::ofstream file(out_, std::ios::binary);
    file << written_;
    file.close();
    if (!file) throw StorageError(fmt::format("cannot write '{}'", out_), "name another --out");
  });
}

StepProbe DeckTuning::probe_written(const std::vector<BatchShape>& shapes,
                                    const std::vector<BatchShape>& evaluation_shapes,
                                    std::int64_t samples, TrainingData* data) {
  broadcast_text(world(), written_);
  const Deck deck = read_written();
  if (!workplace_.mesh) {
    workplace_.mesh = Mesh::over_world(layout_of(deck, world().size()), mesh_options_of(deck));
    open_device(workplace_, deck);
    say(fmt::format("trying it on {}:\n", workplace_.device->description()));
  }
  return probe_step(deck, shapes, evaluation_shapes, workplace_, samples, data);
}

DeckError DeckTuning::nothing_ran(const std::string& what, const StepProbe& probe) {
  return DeckError(fmt::format("even {} does not run: {}", what, probe.why),
                   "`choir plan` lists layouts that need less memory");
}

}  // namespace choir
