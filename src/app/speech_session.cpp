#include "choir/app/speech_session.hpp"

#include "choir/comm/agreement.hpp"
#include "choir/train/run_setup.hpp"

namespace choir {
namespace {

/// The layout it was trained in is not that it is used in.
Arguments overrides_of(const SpeechModelRequest& request) {
  return {"device=" + request.device, fmt::format("parallel.tensor={}", request.tensor),
          "parallel.pipeline=1",      "parallel.virtual_stages=1",
          "parallel.schedule=1f1b",   "parallel.data=auto",
          "parallel.sequence=false"};
}

std::unique_ptr<TextUnits> units_of(const TrainMeta& meta, const std::string& path) {
  if (meta.vocabulary.empty())
    throw DataError(path + " has no units of text: it was trained without a tokenizer",
                    "train with data whose labels `choir prepare tokens` made");
  auto units = std::make_unique<TextUnits>(TextUnits::from_json(meta.vocabulary, path));
  if (units->vocab_size() != meta.vocab_size)
    throw DataError(fmt::format("{}: its model has {} units of text, its tokenizer {}", path,
                                meta.vocab_size, units->vocab_size()),
                    "the checkpoint was put together from two");
  return units;
}

}  // namespace

LoadedSpeechModel load_speech_model(const SpeechModelRequest& request, Workplace& place) {
  Mesh& mesh = *place.mesh;
  LoadedSpeechModel loaded;
  loaded.checkpoint = open_checkpoint(request.checkpoint, mesh.world());
  const std::string& path = loaded.checkpoint.path;
  const TrainMeta meta = TrainMeta::parse(loaded.checkpoint.json, path);
  if (!deck_of(loaded.checkpoint, meta, {}).model.speech())
    throw DeckError(path + " holds a language model (model.type = \"gpt\"), which hears nothing",
                    "use a checkpoint of model.type = \"fastconformer\"; `choir generate` "
                    "continues text");
  loaded.deck = deck_of(loaded.checkpoint, meta, overrides_of(request));
  if (!request.precision.empty()) loaded.deck.train.precision = request.precision;
  together(mesh.world(), [&] { loaded.units = units_of(meta, path); });
  const ZeroOptions zero{.stage = loaded.deck.parallel.zero == 3 ? 3 : 0,
                         .prefetch = loaded.deck.parallel.zero_prefetch};
  const ModelInstance::Options options{.model = model_of(loaded.deck),
                                       .precision = precision_of(loaded.deck.train.precision),
                                       .seed = static_cast<std::uint64_t>(loaded.deck.run.seed),
                                       .zero = zero};
  open_device(place, loaded.deck);
  // Every rank cuts recordings alike, whatever its machine has.
  double budget = request.transcription.memory > 0
                      ? request.transcription.memory
                      : default_transcription_memory(*place.device, mesh.node().size());
  mesh.world().all_reduce(&budget, 1, DType::f64, ReduceOp::min);
  together(mesh.world(), [&] {
    loaded.plan = plan_transcription(options, mesh.layout(), mesh.rank(), request.transcription,
                                     budget, place.device.get());
  });
  require_equal(mesh.world(), static_cast<std::uint64_t>(loaded.plan.windows.frames),
                "windows that recordings are cut into");
  loaded.instance =
      std::make_unique<ModelInstance>(options, *place.device, mesh, loaded.plan.arena_bytes);
  load_checkpoint(loaded.checkpoint, parameters_to_load(*loaded.instance), mesh.world(),
                  "parameters/");
  loaded.instance->publish();
  return loaded;
}

}  // namespace choir
