// choir tune DECK.json [key.path=value ...] [--out FILE] [--memory SIZE] [--probe]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "choir/deck/deck.hpp"
#include "choir/run/training_data.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/tune/tune.hpp"
#include "src/models/fastconformer/bucket_tuner.hpp"
#include "src/models/fastconformer/speech_data.hpp"
#include "src/models/fastconformer/speech_settings.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct TuneRequest {
  const FamilyTable& families;
  Arguments words;
  std::string out;
  TunePlace place;
  bool probe = false;
};

class TuneRun {
 public:
  TuneRun(MpiSession& session, const TuneRequest& request)
      : request_(request),
        words_(sort_words(request.words)),
        mesh_(Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi)),
        speaks_(session.rank() == 0) {
    if (!words_.device.empty()) words_.overrides.push_back("device=" + words_.device);
  }

  int run() {
    text_ = read_everywhere(world(), words_.deck);
    together(world(), [&] {
      case_.deck = parse_deck(request_.families, text_, words_.deck, words_.overrides);
      choose_out();
    });
    limit_ = take_place(request_.place, *mesh_, case_);
    if (case_.deck.family().fixed_shape())
      tune_micro_batches();
    else if (case_.deck.family().transcribes())
      tune_speech();
    else
      tune_whole_batches();
    return 0;
  }

 private:
  Communicator& world() { return mesh_->world(); }

  void choose_out() {
    namespace fs = std::filesystem;
    out_ =
        request_.out.empty() ? fs::path(words_.deck).stem().string() + "_tuned.json" : request_.out;
    std::error_code missing;
    if (fs::equivalent(out_, words_.deck, missing))
      throw DeckError(fmt::format("the tuned deck would replace '{}', with its comments", out_),
                      "name another --out");
    require_regular(out_);
  }

  void say(const std::string& text) const {
    if (!speaks_) return;
    print_safely("{}", text);
    std::fflush(stdout);
  }
  void say_head() const {
    say(fmt::format("tune for {}, {} rank(s): {} per rank ({})\n", case_.target.name, case_.ranks,
                    format_bytes(case_.target.memory), limit_));
  }

  /// Decides on rank 0 and shares the result with all ranks.
  std::vector<std::string> decided(const std::function<std::vector<std::string>()>& decide) {
    std::string text;
    together(world(), [&] {
      if (speaks_) text = join(decide(), "\n");
    });
    broadcast_text(world(), text);
    return split(text, '\n');
  }

  void write(const DeckVariants& variants, const std::vector<std::string>& changes) {
    written_ = written_deck(text_, variants.with(changes));
  }
  /// Parses the written deck as train would.
  Deck read_written() const {
    Deck deck = parse_deck(request_.families, written_, out_, {});
    if (std::int64_t& size = deck.family().vocab_size(deck); size == 0) size = vocabulary_;
    return deck;
  }
  void store() {
    together(world(), [&] {
      if (!speaks_) return;
      std::ofstream file(out_, std::ios::binary);
      file << written_;
      file.close();
      if (!file) throw StorageError(fmt::format("cannot write '{}'", out_), "name another --out");
    });
  }

  /// Runs steps of the written deck on the device of the training (--probe). Collective.
  StepProbe probe_written(const std::vector<BatchShape>& shapes,
                          const std::vector<BatchShape>& evaluation_shapes) {
    broadcast_text(world(), written_);
    const Deck deck = read_written();
    if (!workplace_.mesh) {
      workplace_.mesh = Mesh::over_world(layout_of(deck, world().size()), mesh_options_of(deck));
      open_device(workplace_, deck);
      say(fmt::format("trying it on {}:\n", workplace_.device->description()));
    }
    return probe_step(deck, shapes, evaluation_shapes, workplace_);
  }
  static DeckError nothing_ran(const std::string& what, const StepProbe& probe) {
    return DeckError(fmt::format("even {} does not run: {}", what, probe.why),
                     "`choir plan` lists layouts that need less memory");
  }

  void say_verdict(const LayoutPlan& plan) const {
    const auto total = plan.needs();
    say(fmt::format("{}: the fullest rank is {}, {} of {}, {:.0f} %\n",
                    plan.fits() ? "FITS" : "TOO LARGE", plan.fullest().rank, format_bytes(total),
                    format_bytes(plan.memory_limit), 100 * total / plan.memory_limit));
    say(fmt::format("written: {} (choir plan {} --ranks {} --memory {}{})\n", out_, out_,
                    case_.ranks, case_.target.memory / kGiB,
                    request_.place.target.empty() ? "" : " --target " + request_.place.target));
  }

  void tune_micro_batches() {
    Logger quiet(false);
    if (case_.deck.family().vocab_size(case_.deck) == 0) {
      Deck alone = case_.deck;
      alone.train.global_batch_size = 1;
      const BatchSizes one{.micro = 1, .accum = 1, .global = 1};
      vocabulary_ = alone.family().open_data(alone, one, *mesh_, quiet)->vocab_size();
    }
    const DeckVariants variants(request_.families, text_, words_.deck, words_.overrides,
                                vocabulary_);
    TunedMicroBatch tuned;  // on rank 0
    together(world(), [&] {
      if (!speaks_) return;
      case_.deck = variants.with({});
      say_head();
      tuned = tune_micro_batch(case_, variants);
      say(to_string(tuned));
      write(variants, tuned.changes());
    });
    if (request_.probe) probe_micro_batches(variants, tuned);
    together(world(), [&] {
      if (!speaks_) return;
      case_.deck = read_written();
      plan_ = plan_layout(case_);
    });
    store();
    if (speaks_) say_verdict(*plan_);
  }

  /// Tries the micro-batches in ascending order and stores each that ran: if the system kills the
  /// process, the largest of them remains.
  void probe_micro_batches(const DeckVariants& variants, const TunedMicroBatch& tuned) {
    auto rows = std::ranges::count_if(tuned.rows, &TunedMicroBatch::Row::fits);
    world().broadcast(&rows, sizeof rows, 0);
    std::string largest;
    for (std::ptrdiff_t r = 0; r < rows; ++r) {
      together(world(), [&] {
        if (speaks_) write(variants, tuned.rows[static_cast<std::size_t>(r)].changes);
      });
      const StepProbe probe = probe_written({}, {});
      if (speaks_)
        say(fmt::format("  micro-batch {:>5} {}\n", tuned.rows[static_cast<std::size_t>(r)].micro,
                        to_string(probe)));
      if (!probe.ran && r == 0)
        together(world(), [&] { throw nothing_ran("the smallest micro-batch", probe); });
      if (!probe.ran) break;
      largest = written_;
      store();
    }
    written_ = largest;
    const Deck deck = read_written();
    say(fmt::format("the largest that ran: train.micro_batch_size {}\n",
                    deck.train.micro_batch_size));
  }

  void refuse_synthetic() {
    together(world(), [&] {
      if (case_.deck.data.format == DataFormat::synthetic)
        throw DeckError("data.format = \"synthetic\" has no buckets to tune",
                        "name folders of packed data in data.train");
    });
  }

  // Tunes a model whose buckets all follow from one key: finds its largest value within two
  // percent.
  void tune_whole_batches() {
    refuse_synthetic();
    const KeySet& keys = case_.deck.family().keys();
    key_ = keys.find("data.batch_tokens") != nullptr ? "data.batch_tokens" : "data.batch_duration";
    const DeckVariants variants(request_.families, text_, words_.deck, words_.overrides, 0);
    const double was = number_of_key(variants.with({}));
    say_head();
    // The search also ends when a larger batch has the same shapes, because the data has no larger
    // ones.
    double fits = 0, above = 0;
    std::string text;
    for (double value = was; above == 0 || above > 1.02 * fits + 1;) {
      const Tried tried =
          value < was ? try_smaller(variants, value, was) : try_batch(variants, value);
      if (tried.fits) text = tried.text;
      (tried.fits ? fits : above) = value;
      if (tried.fits && above == 0 && tried.same_shapes) break;
      if (fits == 0 && value <= was / kLeast) throw too_large(was, value);
      value = std::floor(fits == 0 ? value / 2 : above == 0 ? 2 * value : (fits + above) / 2);
    }
    try_batch(variants, fits);
    if (request_.probe) fits = probe_whole_batches(variants, fits, was);
    store();
    if (!speaks_) return;
    print_safely("{} = {:.0f} (was {:.0f})\n{}\n", key_, fits, was, text);
    const auto micro_batches = static_cast<double>(case_.deck.train.micro_batches);
    if (const auto same = std::max(1LL, std::llround(micro_batches * was / fits));
        same != std::llround(micro_batches))
      print_safely(
          "train.micro_batches = {:.0f} is unchanged; for about as much data per step as before: "
          "train.micro_batches={}\n",
          micro_batches, same);
    say_verdict(*plan_);
  }

  /// Lowers a value that fits until it runs. Returns that value; its deck is ready to be stored.
  double probe_whole_batches(const DeckVariants& variants, double value, double was) {
    constexpr double kLess = 0.875;
    for (;; value = std::floor(kLess * value)) {
      const StepProbe probe = probe_written(case_.shapes, case_.evaluation_shapes);
      say(fmt::format("  {} = {:.0f} {}\n", key_, value, to_string(probe)));
      if (probe.ran) return value;
      if (kLess * value <= was / kLeast)
        together(world(),
                 [&] { throw nothing_ran(fmt::format("{} = {:.0f}", key_, value), probe); });
      try_smaller(variants, std::floor(kLess * value), was);
    }
  }

  static constexpr double kLeast = 64;  ///< the smallest value tried is the deck's value / kLeast

  DeckError too_large(double was, double least) const {
    return DeckError(
        fmt::format(
            "{} = {:.0f} is too large for {} per rank, and so are all values down to {:.0f}", key_,
            was, format_bytes(case_.target.memory), least),
        "use more memory per rank, a larger parallel.tensor, or train.recompute");
  }

  struct Tried {
    bool fits = false, same_shapes = false;
    std::string text;  ///< the data's own report
  };
  /// Leaves the deck with this value ready to be stored, and its plan. Collective.
  Tried try_batch(const DeckVariants& variants, double value) {
    Logger quiet(false);
    together(world(), [&] {
      write(variants, {fmt::format("{}={:.0f}", key_, value)});
      case_.deck = read_written();
    });
    const BatchSizes one{.micro = 1, .accum = 1, .global = 1};
    const auto data = case_.deck.family().open_data(case_.deck, one, *mesh_, quiet);
    vocabulary_ = data->vocab_size();
    Tried tried{.text = data->to_string()};
    std::int64_t verdict[2] = {0, 0};
    verdict[1] = same_sizes(case_.shapes, data->shapes()) ? 1 : 0;
    case_.shapes = data->shapes();
    case_.evaluation_shapes = data->validation_shapes();
    together(world(), [&] {
      if (!speaks_) return;
      case_.deck = read_written();
      plan_ = plan_layout(case_);
      verdict[0] = plan_->fits() ? 1 : 0;
    });
    world().broadcast(verdict, sizeof verdict, 0);
    tried.fits = verdict[0] != 0, tried.same_shapes = verdict[1] != 0;
    return tried;
  }
  /// The same for a smaller value, whose batches may be too small for the longest samples.
  Tried try_smaller(const DeckVariants& variants, double value, double was) {
    try {
      return try_batch(variants, value);
    } catch (const DataError&) {
      throw too_large(was, value);
    }
  }
  double number_of_key(const Deck& deck) const {
    const auto json = parsed_json(resolved_json(deck));
    return json.at("data").at(key_.substr(key_.find('.') + 1)).get<double>();
  }
  static bool same_sizes(const std::vector<BatchShape>& a, const std::vector<BatchShape>& b) {
    return std::ranges::equal(a, b, [](const BatchShape& x, const BatchShape& y) {
      return x.samples == y.samples && x.tokens == y.tokens && x.audio_samples == y.audio_samples &&
             x.clips == y.clips;
    });
  }

  void tune_speech() {
    refuse_synthetic();
    const double duration = speech_settings(case_.deck).data.batch_duration;
    SpeechData data = open_speech(case_.deck, *mesh_, true);
    vocabulary_ = data.set->vocab_size();
    const SpeechPadding before = data.set->padding();
    const int rate = data.set->sample_rate();
    const DeckVariants variants(request_.families, text_, words_.deck, words_.overrides,
                                vocabulary_);
    const double seconds = mean_seconds(data.set->sampler(), rate);
    std::vector<TunedBucket> tuned;  // on rank 0
    std::vector<std::string> changes = decided([&] {
      case_.deck = variants.with({});
      say_head();
      tuned =
          tune_buckets(case_, buckets_of(data.set->sampler(), speech_of(case_.deck).speech_frames(),
                                         rate, speech_settings(case_.deck).data.max_utterances));
      say(to_string(tuned, case_.target.memory));
      return changes_of(tuned, case_.deck, rate);
    });
    SpeechPadding after = reopen(variants, changes, data);
    if (request_.probe && probe_buckets(tuned)) {
      changes = decided([&] { return changes_of(tuned, case_.deck, rate); });
      after = reopen(variants, changes, data);
    }
    if (plan_ && !plan_->fits())
      say("evaluation in larger batches exceeds the limit: its batches are unchanged\n");
    std::int64_t fits = plan_ && plan_->fits();
    world().broadcast(&fits, sizeof fits, 0);
    if (fits == 0) {
      const auto more = keep_evaluation(duration);
      changes.insert(changes.end(), more.begin(), more.end());
      after = reopen(variants, changes, data);
      together(world(), [&] {
        if (speaks_ && !plan_->fits()) throw evaluation_too_large();
      });
    }
    store();
    if (speaks_) say_batches(before, after, seconds);
    if (speaks_) say_verdict(*plan_);
  }

  /// Tries each bucket alone and reduces its utterances until it runs. Returns true if any bucket
  /// has fewer now.
  bool probe_buckets(std::vector<TunedBucket>& tuned) {
    std::int64_t fewer = 0;
    std::size_t buckets = tuned.size();
    world().broadcast(&buckets, sizeof buckets, 0);
    tuned.resize(buckets);
    for (std::size_t b = 0; b < buckets;) {
      TunedBucket& bucket = tuned[b];
      BatchShape shape{.samples = bucket.batch,
                       .audio_samples = bucket.bucket.samples,
                       .labels = bucket.bucket.labels};
      world().broadcast(&shape, sizeof shape, 0);
      const StepProbe probe = probe_written({shape}, {});
      say(fmt::format("  to {:.2f} s: {:>5} {}\n", bucket.bucket.bin.seconds, shape.samples,
                      to_string(probe)));
      if (probe.ran) {
        ++b;
        continue;
      }
      if (shape.samples == 1) together(world(), [&] { throw nothing_ran("one utterance", probe); });
      bucket.batch = shape.samples * 7 / 8;
      bucket.limited_by = "memory (probed)";
      fewer = 1;
    }
    return fewer != 0;
  }

  /// Reopens the data of the written deck, as train would, and plans it.
  SpeechPadding reopen(const DeckVariants& variants, const std::vector<std::string>& changes,
                       SpeechData& data) {
    together(world(), [&] {
      write(variants, changes);
      case_.deck = read_written();
    });
    data.set.reset();
    data = open_speech(case_.deck, *mesh_, true);
    together(world(), [&] {
      if (!speaks_) return;
      case_.shapes = largest_shapes(data.set->shapes());
      case_.evaluation_shapes = largest_shapes(data.set->eval_shapes());
      plan_ = plan_layout(case_);
    });
    return data.set->padding();
  }

  /// Sets the old data.batch_duration for validation sets that have no batch_duration of their own.
  std::vector<std::string> keep_evaluation(double duration) const {
    const Deck& deck = case_.deck;
    const std::string word = fmt::format(" batch_duration={}", duration);
    std::vector<std::string> changes;
    for (const SpeechEvalSet& set : speech_data_config(deck, speech_request(deck)).eval) {
      const auto named = speech_settings(deck).data.validation.find(set.name);
      const std::string text = named != speech_settings(deck).data.validation.end()
                                   ? named->second
                                   : set.folders.front();
      if (set.batch_duration > 0) continue;
      changes.push_back("data.validation." + set.name + "=" + text + word);
    }
    if (!deck.data.val.empty()) changes.emplace_back("data.val=[]");
    return changes;
  }
  DeckError evaluation_too_large() const {
    return DeckError(fmt::format("evaluation needs {} per rank, above the limit of {}",
                                 format_bytes(plan_->needs()), format_bytes(case_.target.memory)),
                     "use smaller batches: data.validation.NAME=\"FOLDER batch_duration=S\", or "
                     "max_duration=S there");
  }

  void say_batches(const SpeechPadding& before, const SpeechPadding& after, double seconds) const {
    const double was = before.mean_utterances, is = after.mean_utterances;
    say(fmt::format(
        "mean micro-batch: {:.1f} utterances, {:.1f} s of audio (was {:.1f}, {:.1f} s); padding "
        "{:.1f} % (was {:.1f} %)\n",
        is, is * seconds, was, was * seconds, 100 * after.bucketed, 100 * before.bucketed));
    const int micro_batches = case_.deck.train.micro_batches;
    const auto same =
        std::max<std::int64_t>(1, std::llround(static_cast<double>(micro_batches) * was / is));
    if (same != micro_batches)
      say(
          fmt::format("train.micro_batches = {} is unchanged, so a step has {:.1f} times as much "
                      "audio; for about as much as before: train.micro_batches={}\n",
                      micro_batches, is / was, same));
  }

  const TuneRequest& request_;
  BenchWords words_;
  std::unique_ptr<Mesh> mesh_;
  bool speaks_;
  std::string text_, out_, limit_, written_;
  std::string key_;  ///< the key from which all buckets follow
  std::int64_t vocabulary_ = 0;
  PlanCase case_;
  Workplace workplace_;             // with --probe
  std::optional<LayoutPlan> plan_;  // of the written deck; on rank 0
};

}  // namespace

int tune_command(const Invocation& call) {
  CommandLine app(
      "Finds the largest batch of each speech bucket, or the largest micro-batch of tokens, "
      "conversations or dialogues, that the memory plan allows, and writes a deck with it. Nothing "
      "runs on the device unless --probe is given.",
      "choir tune");
  TuneRequest request{.families = call.families};
  app.add_option("words", request.words, "deck, and any number of key.path=value");
  app.add_option("--out", request.out,
                 "file for the tuned deck; default: DECK_tuned.json in the current folder");
  app.add_option("--memory", request.place.memory,
                 "memory of one rank in GiB, or with a unit (512MiB, 6442450944B); default: the "
                 "memory of the card, or 80 % of the node divided by its ranks");
  app.add_option("--ranks", request.place.ranks,
                 "ranks of the job, if it is tuned on one process; default: those of the deck");
  app.add_option("--gpus-per-node", request.place.ranks_per_node,
                 "ranks per node, if it is tuned on one process");
  app.add_option("--target", request.place.target,
                 "a100, a100-40, h100, h200, cpu, or here for this machine (the default)");
  app.add_flag("--probe", request.probe,
               "then run steps of each candidate on the device, as in training, and write the "
               "largest that ran");
  if (const auto code = parse(app, call)) return *code;
  const int code = without_mpi([&] {
    if (request.probe && (request.place.ranks || request.place.ranks_per_node ||
                          !(request.place.target.empty() || request.place.target == "here")))
      throw DeckError(
          "--probe runs on this machine, but --ranks, --gpus-per-node and --target describe "
          "another",
          "leave them out: mpiexec -n N choir tune DECK --probe");
    if (sort_words(request.words).deck.empty())
      throw DeckError("no deck given", "choir tune inputs/asr_tutorial.json --memory 6GiB");
    if (!request.place.memory.empty()) memory_of_word(request.place.memory);
    return 0;
  });
  if (code != 0) return code;
  return with_mpi([&](MpiSession& session) { return TuneRun(session, request).run(); });
}

}  // namespace choir
