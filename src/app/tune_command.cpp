// choir tune DECK.json [key.path=value ...] [--out FILE] [--memory SIZE] [--probe]
#include <utility>

#include "src/app/bench.hpp"
#include "src/core/hints.hpp"
#include "src/core/text.hpp"
#include "src/lab/tune/deck_tuning.hpp"
#include "src/models/fastconformer/bucket_tuner.hpp"
#include "src/models/gpt/token_data.hpp"

namespace choir {
namespace {

int tune(MpiSession& session, TuneRequest request, const Arguments& given) {
  BenchWords words = sort_words(given);
  if (!words.device.empty()) words.overrides.push_back("device=" + words.device);
  request.deck = words.deck, request.overrides = words.overrides;
  DeckTuning tuning(session, std::move(request));
  Deck here = tuning.plan_case.deck;
  if (const std::string sentence = replace_missing_text(here); !sentence.empty()) {
    tell_replacement(sentence, session.rank());
    tuning.vocabulary = here.family().vocab_size(here);
  }
  const ModelFamily& family = tuning.plan_case.deck.family();
  if (family.fixed_shape())
    tune_micro_batches(tuning);
  else if (family.transcribes())
    tune_buckets_of_speech(tuning);
  else
    tune_whole_batches(tuning);
  return 0;
}

}  // namespace

int tune_command(const Invocation& call) {
  CommandLine app(
      "Finds the largest batch of each speech bucket, or the largest micro-batch of tokens, "
      "conversations or dialogues, that the memory plan allows, and writes a deck with it. Nothing "
      "runs on the device unless --probe is given.",
      "choir tune");
  TuneRequest request{.families = call.families};
  Arguments words;
  app.add_option("words", words, "deck, and any number of key.path=value");
  app.add_option("--out", request.out,
                 "file for the tuned deck; default: DECK_tuned.json in the current folder");
  app.add_option("--memory", request.place.memory,
                 "memory of one rank in GiB, or with a unit (512MiB, 6442450944B); default: the "
                 "memory of the card, or 80 % of the node divided by its ranks");
  JobPlace place;
  add_place_options(app, place);
  app.add_flag("--probe", request.probe,
               "then run steps of each candidate on the device, as in training, and write the "
               "micro-batch of tokens that is fastest per sequence, or the largest batch that ran");
  if (const auto code = parse(app, call)) return *code;
  const int code = without_mpi([&] {
    settle_ranks(place);
    request.place.target = place.target;
    request.place.ranks = place.ranks;
    request.place.ranks_per_node = place.ranks_per_node;
    if (request.probe && (request.place.ranks || request.place.ranks_per_node ||
                          !(request.place.target.empty() || request.place.target == "here")))
      throw DeckError(
          "--probe runs on this machine, but --ranks, --nodes, --gpus-per-node, --gpus and "
          "--target "
          "describe another",
          "leave them out: mpiexec -n N choir tune DECK --probe");
    if (sort_words(words).deck.empty())
      throw DeckError("no deck given",
                      program_name() + " tune inputs/asr_tutorial.json --memory 6GiB");
    if (!request.place.memory.empty()) memory_of_word(request.place.memory);
    return 0;
  });
  if (code != 0) return code;
  return with_mpi([&](MpiSession& session) { return tune(session, request, words); });
}

}  // namespace choir
