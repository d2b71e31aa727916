#include "src/train/loop/warm_start.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/comm/agreement.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/text.hpp"
#include "choir/deck/name_patterns.hpp"
#include "choir/nn/layers/lora.hpp"
#include "choir/store/finite.hpp"
#include "choir/store/open.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {

std::string name_in_model(const std::string& stored) {
  for (const std::string_view kind : {std::string_view("parameters/"), kRunningStatistics})
    if (stored.starts_with(kind)) return stored.substr(kind.size());
  return {};
}

std::string line_list(const std::vector<std::string>& lines) {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMost); ++i) text += "\n    " + lines[i];
  if (lines.size() > kMost) text += fmt::format("\n    and {} more", lines.size() - kMost);
  return text;
}

namespace {

/// The reason why this tensor is not taken; "" if it is taken.
std::string obstacle(const StoredTensor& tensor, const Checkpoint& checkpoint,
                     const CheckpointSection& wish) {
  const std::string name = name_in_model(tensor.name);
  if (!wish.init_take.empty() && !matches_any(wish.init_take, name))
    return "not in checkpoint.init_take";
  if (matches_any(wish.init_skip, name)) return "in checkpoint.init_skip";
  const TensorRecord* record = checkpoint.manifest.find(tensor.name);
  if (record == nullptr) return "not in the checkpoint";
  if (is_loadable(*record, tensor)) return {};
  return fmt::format("stored as {} {}, wanted as {} {}", name_of(record->dtype),
                     to_string(record->shape), name_of(tensor.dtype), to_string(tensor.shape));
}

/// Adapters need their base model: throws DeckError if a requested parameter of the rest of the
/// model is missing.
void require_base(const ModelInstance& instance, const WarmStart& result,
                  const std::vector<std::string>& lacking) {
  if (lacking.empty() || !has_adapters(instance.parameters())) return;
  throw DeckError(
      fmt::format("checkpoint.init_from: {} does not have what model.lora adapts:{}", result.path,
                  line_list(lacking)),
      "name a run of the same model; list parameters that begin anew in checkpoint.init_skip");
}

}  // namespace

std::string WarmStart::to_string() const {
  std::string text = fmt::format("warm start from {}: {} tensors taken", path, taken.size());
  if (!fresh.empty())
    text += fmt::format("\n  {} begin anew ({}):{}", fresh.size(),
                        counted(fresh_elements, "parameter"), line_list(fresh));
  if (!unused.empty())
    text +=
        fmt::format("\n  {} of the checkpoint are not used:{}", unused.size(), line_list(unused));
  return text;
}

WarmStart warm_start(ModelInstance& instance, const CheckpointSection& wish) {
  Communicator& world = instance.mesh().world();
  const Checkpoint checkpoint = open_checkpoint(wish.init_run(), world);
  const std::vector<StoredTensor> all = parameters_to_load(instance);
  WarmStart result{
      .path = checkpoint.path, .taken = {}, .fresh = {}, .fresh_elements = 0, .unused = {}};
  std::vector<StoredTensor> wanted;
  together(world, [&] {
    std::vector<std::string> names, lacking;
    for (const StoredTensor& tensor : all) names.push_back(name_in_model(tensor.name));
    require_matches("checkpoint.init_take", wish.init_take, names);
    require_matches("checkpoint.init_skip", wish.init_skip, names);
    for (const StoredTensor& tensor : all) {
      const std::string name = name_in_model(tensor.name);
      const std::string why = obstacle(tensor, checkpoint, wish);
      if (why.empty()) {
        wanted.push_back(tensor);
        result.taken.push_back(name);
      } else {
        result.fresh.push_back(name + ": " + why);
        result.fresh_elements += tensor.shape.count();
        if (!is_adapter(name) && !why.ends_with("in checkpoint.init_skip") &&
            !why.ends_with("in checkpoint.init_take"))
          lacking.push_back(result.fresh.back());
      }
    }
    for (const TensorRecord& record : checkpoint.manifest.tensors) {
      const std::string name = name_in_model(record.name);
      if (!name.empty() &&
          std::find(result.taken.begin(), result.taken.end(), name) == result.taken.end())
        result.unused.push_back(name);
    }
    require_base(instance, result, lacking);
    if (wanted.empty())
      throw DeckError(fmt::format("checkpoint.init_from: nothing of {} fits this model:{}",
                                  checkpoint.path, line_list(result.fresh)),
                      "`choir inspect` lists what the checkpoint holds");
  });
  // Unwanted tensors of the checkpoint are ignored.
  load_checkpoint(checkpoint, wanted, world, "nothing else");
  require_finite(wanted, checkpoint.path, world);
  instance.publish();
  return result;
}

}  // namespace choir
