#include "src/app/generate_from_audio.hpp"

#include <fmt/core.h>

#include <cstdio>

#include "choir/comm/agreement.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/printable.hpp"
#include "choir/data/vocabulary/utf8_stream.hpp"
#include "choir/models/salm/salm_answers.hpp"
#include "choir/train/step/run_setup.hpp"

namespace choir {
namespace {

/// Returns the prompt as a user's turn with a tag for each clip.
std::string tagged_prompt(const HearRequest& request) {
  const std::string_view tag = kAudioTag;
  std::int64_t tags = 0;
  for (auto at = request.prompt.find(tag); at != std::string::npos;
       at = request.prompt.find(tag, at + tag.size()))
    ++tags;
  const std::int64_t clips = std::ssize(request.clips);
  if (tags == clips) return request.prompt;
  if (tags > 0)
    throw DeckError(
        fmt::format("--prompt has {}, --audio {}", counted(tags, "tag"), counted(clips, "file")),
        fmt::format("write {} once for each clip, or not at all", tag));
  std::string text;
  for (std::int64_t i = 0; i < clips; ++i) text += fmt::format("{} ", tag);
  return text + request.prompt;
}

}  // namespace

int generate_from_audio(MpiSession& session, const HearRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  LoadedModel loaded =
      open_model(request.checkpoint, request.precision, *place.mesh, {"device=" + request.device});
  HeardPrompt prompt;
  together(world, [&] {
    require_ability(loaded, loaded.deck.family().hears(), "has no audio input", "salm");
    prompt = read_prompt(model_of(loaded.deck), loaded.vocabulary, loaded.checkpoint.path,
                         tagged_prompt(request), request.clips);
  });
  load_instance(loaded, {prompt.shape()}, place);
  const bool writes = session.rank() == 0, streams = writes && !request.json;
  const bool all_walk = loaded.instance->storage().sharding().values_sharded();
  Utf8Stream characters;
  std::string answer;
  const auto work = [&] {
    if (place.mesh->coordinates()[Axis::data] != 0 && !all_walk) return;
    answer = prompt.answer(*loaded.instance, request.tokens, request.choice,
                           [&](const std::string& piece) {
                             if (streams) print_generated(characters.push(piece));
                           });
  };
  if (all_walk)
    work();  // the ranks run in lockstep and agree on errors themselves
  else
    together(world, work);
  if (streams) print_generated(characters.finish() + "\n");
  if (writes && request.json) {
    nlohmann::ordered_json json;
    json["prompt"] = request.prompt;
    json["audio"] = request.clips;
    json["answer"] = answer;
    print_safely("{}\n", dumped_safely(json));
  }
  return 0;
}

}  // namespace choir
