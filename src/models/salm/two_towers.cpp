#include "choir/models/salm/two_towers.hpp"

#include "choir/core/text.hpp"
#include "choir/device/arena.hpp"

namespace choir {

std::size_t tables_behind(const EncoderTower& encoder, const Precision& precision) {
  return static_cast<std::size_t>(
      round_up(static_cast<std::int64_t>(encoder.table_bytes(precision)), Arena::kAlignment));
}

bool ends_meet(const ModelPieces& pieces, int junction) {
  for (int i = 0; i < pieces.count(); ++i)
    if (pieces[i].contains(junction) && pieces[i].head) return true;
  return pieces.whole();
}

std::int64_t parameters_of(const ParameterSet& parameters, std::string_view prefix) {
  std::int64_t count = 0;
  for (const Parameter* p : parameters.all())
    if (p->name.starts_with(prefix)) count += p->count();
  return count;
}

UnitCosts two_tower_costs(const FastConformerConfig& encoder, const GptConfig& lm,
                          const BatchShape& shape, std::int64_t clips) {
  const BatchShape audio{.samples = clips, .audio_samples = shape.audio_samples};
  const auto frames = static_cast<double>(clips * encoder.frames(shape.audio_samples));
  const UnitCosts decoder = Gpt::unit_costs(lm, shape.samples * shape.tokens);
  UnitCosts costs(static_cast<std::size_t>(encoder.n_layer) + 1,
                  EncoderTower::block_flops(encoder, audio));
  costs.front() = EncoderTower::input_flops(encoder, audio);
  costs.push_back(decoder.front() + 2 * frames * static_cast<double>(encoder.n_embd * lm.n_embd));
  costs.insert(costs.end(), decoder.begin() + 1, decoder.end());
  return costs;
}

std::vector<KeyProblem> within(const std::string& section, std::vector<KeyProblem> problems) {
  const auto moved = [&](std::string& text) {
    const std::string from = "model.";
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos;
         at += section.size() + 1)
      text.replace(at, from.size(), section + ".");
  };
  for (KeyProblem& problem : problems) {
    for (std::string& key : problem.keys) moved(key);
    moved(problem.text);
  }
  return problems;
}

}  // namespace choir
