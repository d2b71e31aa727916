#include "src/run/whole_model.hpp"

#include "src/comm/agreement.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/finite.hpp"
#include "src/store/open.hpp"

namespace choir {

WholeModel::WholeModel(const FamilyTable& table, const std::string& path, Communicator& world)
    : checkpoint_(open_checkpoint(path, world)), alone_(Mesh::planned(Layout(), 0, 1)) {
  together(world, [&] {
    const TrainMeta meta = TrainMeta::parse(checkpoint_.json, checkpoint_.path);
    deck_ = parse_deck(table, meta.deck, checkpoint_.path + " (deck)", {});
    deck_.family().vocab_size(deck_) = meta.vocab_size;
    vocabulary_ = meta.vocabulary;
  });
}

ModelInstance::Options WholeModel::options() const {
  const std::string& trained = deck_.train.precision;
  const bool other_masters = trained == "fp64" || trained == "bf16-true";
  return {.model = model_of(deck_),
          .precision = precision_of(other_masters ? trained : "fp32"),
          .seed = static_cast<std::uint64_t>(deck_.run.seed)};
}

ModelInstance& WholeModel::load(std::size_t arena_bytes, Communicator& world) {
  together(world, [&] {
    instance_ = std::make_unique<ModelInstance>(options(), device_, *alone_, arena_bytes);
  });
  const std::vector<StoredTensor> tensors = parameters_to_load(*instance_);
  load_checkpoint(checkpoint_, tensors, world, "parameters/");
  require_finite(tensors, checkpoint_.path, world);
  instance_->publish();
  return *instance_;
}

}  // namespace choir
