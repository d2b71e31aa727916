#include "src/models/salm/generator.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "src/core/text.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/splice.hpp"
#include "src/models/salm/salm.hpp"
#include "src/models/salm/salm_config.hpp"
#include "src/run/inference_pass.hpp"

namespace choir {
namespace {

/// Prompts with equal numbers of rows in host memory, in the model's form.
class PromptBatch {
 public:
  PromptBatch(std::span<const SalmPrompt* const> prompts, const SpeechFrames& frames) {
    std::vector<std::vector<std::int64_t>> samples;
    std::int64_t longest = 0;
    for (const SalmPrompt* prompt : prompts) {
      samples.emplace_back();
      for (const auto& clip : prompt->clips) {
        samples.back().push_back(std::ssize(clip));
        longest = std::max(longest, std::ssize(clip));
        clips_.push_back(clip);
      }
    }
    const std::int64_t width = frames.padded(longest);
    const std::int64_t clips = std::max<std::int64_t>(std::ssize(clips_), 1);
    lay_out_audio(frames, clips, width);
    lay_out_rows(prompts, samples, frames, frames.rows(width));
    conversation_ids_.assign(prompts.size(), 0);
    batch = salm_fields(frames.stages, {.samples = std::ssize(prompts),
                                        .tokens = splice_.tokens,
                                        .audio_samples = width,
                                        .clips = clips});
    batch["audio"].data = audio_.data();
    batch["audio_lengths"].data = audio_lengths_.data();
    batch["frame_lengths"].data = frame_lengths_.data();
    batch["sample_ids"].data = clip_ids_.data();
    batch["conversation_ids"].data = conversation_ids_.data();
    batch["index"].data = splice_.splice.data();
    batch["targets"] = {};
  }
  PromptBatch(const PromptBatch&) = delete;
  PromptBatch& operator=(const PromptBatch&) = delete;

  ModelBatch batch;

 private:
  void lay_out_audio(const SpeechFrames& frames, std::int64_t clips, std::int64_t width) {
    const auto n = static_cast<std::size_t>(clips);
    audio_.assign(n * static_cast<std::size_t>(width), 0);
    audio_lengths_.assign(n, 0);
    frame_lengths_.assign(static_cast<std::size_t>(frames.stages + 1) * n, 0);
    clip_ids_.assign(n, 0);
    for (std::size_t c = 0; c < clips_.size(); ++c) {
      std::ranges::copy(clips_[c], audio_.begin() + static_cast<std::ptrdiff_t>(c) *
                                                        static_cast<std::ptrdiff_t>(width));
      audio_lengths_[c] = static_cast<std::int32_t>(clips_[c].size());
      for (int stage = 0; stage <= frames.stages; ++stage)
        frame_lengths_[static_cast<std::size_t>(stage) * n + c] =
            static_cast<std::int32_t>(frames.after(stage, std::ssize(clips_[c])));
    }
  }

  /// A splice ends before the last token of a row, which must be read here as well.
  void lay_out_rows(std::span<const SalmPrompt* const> prompts,
                    const std::vector<std::vector<std::int64_t>>& samples,
                    const SpeechFrames& frames, std::int64_t padded_rows) {
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<std::vector<std::uint8_t>> counted;
    std::vector<SpliceRow> rows;
    for (const SalmPrompt* prompt : prompts) {
      ids.push_back(prompt->ids);
      ids.back().push_back(0);
      counted.emplace_back(ids.back().size(), 0);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back({ids[i], counted[i], samples[i]});
    make_splice(rows,
                {.frames = frames, .placeholder = kAudioPlaceholder, .padded_rows = padded_rows},
                splice_);
  }

  std::vector<std::span<const std::uint16_t>> clips_;
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> audio_lengths_, frame_lengths_;
  std::vector<std::int64_t> clip_ids_, conversation_ids_;
  Splice splice_;
};

/// True for fields of rows, false for fields of clips.
bool is_of_rows(const BatchField& field) {
  return field.name == "index" || field.name == "targets" || field.name == "conversation_ids";
}

}  // namespace

/// Prompts that are answered together.
struct SalmGenerator::Streams {
  Streams(ModelInstance& instance, std::int64_t count)
      : state(instance.model().make_state(instance.pass(), count)), graph(instance) {
    state.begin(instance.stream());
  }
  StreamState state;
  TokenGraph graph;
  HostBuffer memory;  ///< host memory of the scores
};

SalmGenerator::SalmGenerator(ModelInstance& instance)
    : instance_(instance), all_walk_(instance.storage().sharding().values_sharded()) {
  const FastConformerConfig& encoder = instance.as<Salm>().config().encoder;
  silence_.emplace(instance.options().model,
                   BatchShape{.samples = 1,
                              .tokens = 1,
                              .audio_samples = encoder.speech_frames().multiple(),
                              .clips = 1});
  silence_->clear();
}

std::int64_t SalmGenerator::rows(const SalmPrompt& prompt) const {
  const SpeechFrames frames = instance_.as<Salm>().config().clip_rows();
  std::int64_t rows = std::ssize(prompt.ids) - std::ssize(prompt.clips);
  for (const auto& clip : prompt.clips) rows += frames.rows(std::ssize(clip));
  return rows;
}

std::int64_t SalmGenerator::together(std::int64_t rows, std::int64_t tokens) const {
  const std::int64_t block = instance_.as<Salm>().config().lm.block_size;
  return std::clamp<std::int64_t>(rows * tokens / block, 1, std::max<std::int64_t>(rows, 1));
}

std::vector<std::vector<std::int32_t>> SalmGenerator::answer(
    std::span<const SalmPrompt> prompts, std::int64_t count, const TokenChoice& choice,
    std::int64_t together, const std::function<void(std::int32_t)>& on_token) {
  std::map<std::int64_t, std::vector<std::size_t>> by_rows;
  for (std::size_t i = 0; i < prompts.size(); ++i) by_rows[rows(prompts[i])].push_back(i);
  std::vector<std::vector<std::int32_t>> answers(prompts.size());
  for (const auto& [length, members] : by_rows)
    for (std::size_t first = 0; first < members.size();) {
      const std::size_t end = std::min(
          members.size(), first + static_cast<std::size_t>(std::max<std::int64_t>(together, 1)));
      std::vector<const SalmPrompt*> group;
      std::vector<std::vector<std::int32_t>*> made;
      for (; first < end; ++first) {
        group.push_back(&prompts[members[first]]);
        made.push_back(&answers[members[first]]);
      }
      answer_group(group, count, choice, made, on_token);
    }
  while (take_turn(Turn::none, {})) {
  }
  return answers;
}

void SalmGenerator::answer_group(std::span<const SalmPrompt* const> group, std::int64_t count,
                                 const TokenChoice& choice,
                                 std::span<std::vector<std::int32_t>* const> answers,
                                 const std::function<void(std::int32_t)>& on_token) {
  const GptConfig& lm = instance_.as<Salm>().config().lm;
  const std::int64_t length = rows(*group.front());
  CHOIR_CHECK(length >= 1 && length <= lm.block_size, "a prompt of {} rows for a model of {}",
              length, lm.block_size);
  count = std::min(count, lm.block_size - length + 1);
  const PromptBatch prompt(group, instance_.as<Salm>().config().clip_rows());
  TokenChooser chooser(choice, lm.vocab_size);
  Streams streams(instance_, std::ssize(group));
  std::vector<std::int32_t> tokens(group.size(), 0);
  std::vector<std::uint8_t> done(group.size(), 0);
  const auto width = static_cast<std::size_t>(lm.vocab_size);
  std::vector<float> scores_of_all(group.size() * width);
  Communicator& stages = instance_.mesh().host_along(Axis::pipeline);
  for (std::int64_t i = 0; i < count; ++i) {
    take_turn(i == 0 ? Turn::prompt : Turn::token, [&] {
      feed(streams, i == 0 ? prompt.batch : token_batch(tokens), [&](const TensorView& scores) {
        to_floats(scores, scores_of_all);
        for (std::size_t b = 0; b < group.size(); ++b)
          tokens[b] = chooser.choose(std::span(scores_of_all).subspan(b * width, width), i);
      });
    });
    // Only the last stage has chosen tokens.
    if (stages.size() > 1)
      stages.broadcast(tokens.data(), tokens.size() * sizeof tokens.front(), stages.size() - 1);
    bool all_done = true;
    for (std::size_t b = 0; b < group.size(); ++b) {
      if (std::ranges::count(choice.stop, tokens[b]) > 0) done[b] = 1;
      if (done[b] != 0) continue;
      answers[b]->push_back(tokens[b]);
      if (on_token && group.size() == 1) on_token(tokens[b]);
      all_done = false;
    }
    if (all_done) return;
  }
}

bool SalmGenerator::take_turn(Turn turn, const std::function<void()>& pass) {
  if (!all_walk_) {
    if (turn != Turn::none) pass();
    return false;
  }
  std::int64_t wanted[2] = {turn == Turn::prompt, turn == Turn::token};
  instance_.mesh().world().all_reduce(wanted, 2, DType::i64, ReduceOp::max);
  for (const bool prompts : {true, false}) {
    if (wanted[prompts ? 0 : 1] == 0) continue;
    if (turn == (prompts ? Turn::prompt : Turn::token))
      pass();
    else
      walk_along(prompts);
  }
  return wanted[0] + wanted[1] > 0;
}

// Runs a pass of this kind through the same layers.
void SalmGenerator::walk_along(bool with_audio) {
  ModelBatch batch = silence_->batch;
  if (!with_audio && instance_.stages().size() == 1) {
    ModelBatch text;
    text.samples = batch.samples, text.tokens = batch.tokens;
    for (const BatchField& field : batch.fields())
      if (is_of_rows(field)) text.add(field);
    batch = text;
  }
  instance_.forward(Mode::evaluate, batch);
}

// If stages divide the encoder, each of them must produce output.
ModelBatch SalmGenerator::token_batch(std::span<const std::int32_t> tokens) {
  ids_.assign(tokens.size(), 0);
  ModelBatch batch;
  if (instance_.stages().size() > 1)
    for (const BatchField& field : silence_->batch.fields())
      if (!is_of_rows(field)) batch.add(field);
  batch.samples = std::ssize(tokens);
  batch.tokens = 1;
  batch.add({.name = "conversation_ids", .view = {ids_.data(), DType::i64, {std::ssize(ids_)}}});
  batch.add({.name = "index",
             .view = {const_cast<std::int32_t*>(tokens.data()), DType::i32, {std::ssize(tokens)}}});
  return batch;
}

void SalmGenerator::feed(Streams& streams, const ModelBatch& host, const Show& show) {
  ModelInstance::BatchMemory memory;
  const ModelBatch batch = instance_.part_of(host, Mode::generate, memory);
  const auto forward = [&](Sequence sequence) {
    Pass& pass = instance_.pass();
    sequence.sample_ids = static_cast<const std::int64_t*>(batch["conversation_ids"].data);
    pass.begin(Mode::generate, sequence, 0);
    instance_.model().add_sequences(pass, batch);
    return forward_through_stages(instance_.model(), pass, batch, instance_.stages());
  };
  streams.graph.run(streams.state, batch.tokens, batch["index"].data, forward,
                    [&](const TensorView& logits) {
                      if (show) look_at_scores(instance_.device(), logits, streams.memory, show);
                    });
}

std::vector<double> SalmGenerator::logits(std::span<const SalmPrompt> prompts) {
  std::vector<const SalmPrompt*> group;
  for (const SalmPrompt& prompt : prompts) group.push_back(&prompt);
  const PromptBatch prompt(group, instance_.as<Salm>().config().clip_rows());
  Streams streams(instance_, std::ssize(group));
  std::vector<double> all;
  take_turn(Turn::prompt, [&] {
    feed(streams, prompt.batch, [&](const TensorView& scores) {
      all.resize(static_cast<std::size_t>(scores.count()));
      to_doubles(scores, all);
    });
  });
  return all;
}

void SalmGenerator::rehearse(const ModelBatch& batch) {
  const std::int64_t count = together(batch.samples, batch.tokens);
  const std::int64_t length = std::min(batch.tokens, instance_.as<Salm>().config().lm.block_size);
  const std::vector<std::int32_t> cells(static_cast<std::size_t>(count * length), 0);
  ids_.assign(static_cast<std::size_t>(count), 0);
  ModelBatch prompt = batch;
  prompt.samples = count, prompt.tokens = length;
  prompt["conversation_ids"] = {ids_.data(), DType::i64, {count}};
  prompt["index"] = {const_cast<std::int32_t*>(cells.data()), DType::i32, {std::ssize(cells)}};
  prompt["targets"] = {};
  if (all_walk_) walk_along(true), walk_along(false);
  Streams streams(instance_, count);
  feed(streams, prompt);
  if (length == instance_.as<Salm>().config().lm.block_size) return;
  feed(streams, token_batch(std::span(cells).first(static_cast<std::size_t>(count))));
  if (all_walk_) walk_along(true), walk_along(false);  // now with cached keys and values
}

namespace {

/// Opens a recording. If no channel is chosen, several are averaged, and a note tells so.
Recording opened_recording(const std::string& path, ChannelChoice channel, int rate,
                           std::vector<std::string>& notes) {
  RecordingSource source;
  source.path = path;
  source.channel = channel;
  if (channel.value != ChannelChoice::kUnset) return Recording::open(source, rate);
  try {
    return Recording::open(source, rate);
  } catch (const AudioError& error) {
    if (error.fault() != AudioFault::channels) throw;
    notes.push_back(fmt::format("{}: its channels are averaged; --channel N takes one", path));
  }
  source.channel.value = ChannelChoice::kAverage;
  return Recording::open(source, rate);
}

std::vector<std::uint16_t> samples_of(const std::string& path, const SalmConfig& config,
                                      ChannelChoice channel, std::vector<std::string>& notes) {
  const FastConformerConfig& encoder = config.encoder;
  const std::int64_t most_rows = config.lm.block_size;
  Recording recording =
      opened_recording(path, channel, static_cast<int>(encoder.mel.sample_rate), notes);
  const std::int64_t rows = config.clip_rows().rows(recording.samples());
  if (rows < 1)
    throw DataError(
        fmt::format("'{}' is {:.3f} seconds long, shorter than one frame of the encoder", path,
                    recording.seconds()),
        fmt::format("a frame is {:.2f} seconds", encoder.seconds_per_frame()));
  if (rows > most_rows)
    throw DeckError(fmt::format("'{}' is {:.1f} seconds long: {} rows, but the model has {} "
                                "positions",
                                path, recording.seconds(), rows, most_rows),
                    fmt::format("at most {:.1f} seconds fit, including prompt and answer",
                                static_cast<double>(most_rows * config.adapter.stack) *
                                    encoder.seconds_per_frame()));
  const auto pcm = recording.read(0, recording.samples());
  return {pcm.begin(), pcm.end()};
}

}  // namespace

HeardPrompt read_prompt(const ModelConfig& model, const std::string& vocabulary,
                        const std::string& source, const std::string& text,
                        const std::vector<std::string>& clips, ChannelChoice channel) {
  const auto& config = model.as<SalmConfig>();
  const std::int64_t block = config.lm.block_size;
  if (clips.empty() && trim(text).empty())
    throw DeckError("the prompt is empty", "give --prompt, or --audio for a recording");
  HeardPrompt prompt;
  const ChatForm form = ChatForm::from_json(vocabulary, source);
  OpenedTokenizer opened = open_chat_tokenizer(form, source);
  prompt.end_ = end_of_turn(opened);
  Conversation conversation{
      .place = "--prompt", .id = {}, .turns = {{.role = "user", .text = text}}};
  prompt.ids_ =
      encode_conversation(conversation,
                          {.chat = opened.chat, .system = form.system, .program = opened.program},
                          *opened.tokenizer)
          .ids;
  prompt.tokenizer_ = std::move(opened.tokenizer);
  prompt.rows_ = std::ssize(prompt.ids_) - std::ssize(clips);
  for (const std::string& path : clips) {
    prompt.clips_.push_back(samples_of(path, config, channel, prompt.notes_));
    const std::int64_t samples = std::ssize(prompt.clips_.back());
    prompt.longest_ = std::max(prompt.longest_, samples);
    prompt.rows_ += config.clip_rows().rows(samples);
  }
  prompt.longest_ = config.encoder.speech_frames().padded(prompt.longest_);
  if (prompt.rows_ > block)
    throw DeckError(
        fmt::format("the prompt has {} tokens and rows of clips, but the model has {} positions",
                    prompt.rows_, block),
        "shorten the text or the clips");
  return prompt;
}

BatchShape HeardPrompt::shape() const {
  return {.samples = 1,
          .tokens = rows_,
          .audio_samples = longest_,
          .clips = std::max<std::int64_t>(std::ssize(clips_), 1)};
}

std::string HeardPrompt::answer(ModelInstance& instance, std::int64_t tokens,
                                const TokenChoice& choice,
                                const std::function<void(const std::string&)>& on_piece) const {
  SalmPrompt prompt{.ids = ids_, .clips = {clips_.begin(), clips_.end()}};
  TokenChoice chosen = choice;
  chosen.stop = {end_};
  // Word pieces are decoded differently at the front of a text, so a piece is the growth of the
  // text.
  std::vector<std::int32_t> so_far;
  std::string shown;
  const auto decoded = [&](std::vector<std::int32_t> ids) {
    std::erase_if(ids, [&](std::int32_t id) { return id >= tokenizer_->vocab_size(); });
    return tokenizer_->decode(std::move(ids));
  };
  const auto made =
      SalmGenerator(instance).answer({&prompt, 1}, tokens, chosen, 1, [&](std::int32_t token) {
        if (!on_piece) return;
        so_far.push_back(token);
        const std::string text = decoded(so_far);
        if (text.size() > shown.size()) on_piece(text.substr(shown.size()));
        shown = text;
      });
  return std::string(trim(decoded(made.front())));
}

}  // namespace choir
