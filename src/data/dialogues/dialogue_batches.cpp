#include "src/data/dialogues/dialogue_batches.hpp"

#include <algorithm>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {
namespace {

constexpr std::int64_t kFramesASecond2 = 25;  // twice 12.5

/// The description of one folder, opened before any audio is read.
struct OpenedDialogues {
  std::string folder;
  DialogueForm form;
  CodeFile codes;
  AudioCatalog user;
};

OpenedDialogues open_folder(const std::string& folder, const std::string& codes) {
  OpenedDialogues opened{folder, DialogueForm::read(folder),
                         CodeFile::open(AudioCatalog::open(DialogueForm::agent(folder)), codes),
                         AudioCatalog::open(DialogueForm::user(folder))};
  if (opened.codes.size() != opened.user.size())
    throw DataError(fmt::format("'{}' has {} recordings of users and {} of agents", folder,
                                opened.user.size(), opened.codes.size()),
                    "pack it again with `choir prepare dialogues`");
  return opened;
}

/// Replaces folders of dialogues by those of their user audio; collects the names, depth first.
void enter_user_folders(std::vector<SpeechInput>& inputs, std::vector<std::string>& folders) {
  for (SpeechInput& input : inputs) {
    if (!input.folder.empty()) {
      folders.push_back(input.folder);
      input.folder = DialogueForm::user(input.folder);
    }
    enter_user_folders(input.group, folders);
  }
}

void check_form(const OpenedDialogues& one, const OpenedDialogues& first,
                const DialogueConfig& config) {
  if (!(one.form == first.form))
    throw DataError(fmt::format("'{}' has the units '{}' ({:016x}), '{}' '{}' ({:016x})",
                                one.folder, one.form.units, one.form.hash(), first.folder,
                                first.form.units, first.form.hash()),
                    "prepare them with the same units: --units FILE");
  if (config.form_hash != 0 && one.form.hash() != config.form_hash)
    throw DataError(fmt::format("the text of '{}' is in other units ({:016x}) than those of the "
                                "model ({:016x})",
                                one.folder, one.form.hash(), config.form_hash),
                    "pack it again with the units of the training data: --units FILE");
  if (config.vocab_size > 0 && one.form.vocab_size > config.vocab_size)
    throw DataError(
        fmt::format("'{}' has a vocabulary of {} with padding, BOS and EOS, but the model "
                    "one of {}",
                    one.folder, one.form.vocab_size, config.vocab_size),
        fmt::format("set that of the model to {}", one.form.vocab_size));
}

void check_codes(const OpenedDialogues& one, const OpenedDialogues& first,
                 const DialogueConfig& config) {
  one.codes.require(first.codes.codec());
  const CodecDescription& codec = one.codes.codec();
  const std::string& path = one.codes.path();
  if (config.codec_hash != 0 && codec.hash != config.codec_hash)
    throw DataError(
        fmt::format("'{}' has codes of codec {:016x}, but the model was trained with codec "
                    "{:016x}",
                    path, codec.hash, config.codec_hash),
        "write them again with that codec: `choir prepare codes`");
  if ((config.codebooks > 0 && codec.codebooks != config.codebooks) ||
      (config.codes_per_book > 0 && codec.codes_per_book != config.codes_per_book))
    throw DataError(
        fmt::format("'{}' has {} codebooks of {}, but the model {} of {}", path, codec.codebooks,
                    codec.codes_per_book, config.codebooks, config.codes_per_book),
        "set the codes of the model to those of the codec");
  const std::int64_t hop = FrameClock{.sample_rate = codec.sample_rate}.hop();
  if (codec.frame_samples != hop)
    throw DataError(fmt::format("'{}' has frames of {} samples; text has frames of 80 ms, {}", path,
                                codec.frame_samples, hop),
                    "dialogues need a codec of 12.5 frames a second");
  const SpeechFrames& frames = config.user.frames;
  const std::int64_t rate = one.user.sample_rate();
  if (2 * rate != kFramesASecond2 * frames.multiple())
    throw DeckError(fmt::format("a frame of the encoder is {} samples at {} Hz, one of the codec "
                                "80 ms",
                                frames.multiple(), rate),
                    "use a hop of 10 ms and model.encoder.subsampling = 8");
}

}  // namespace

struct DialogueBatches::State {
  std::vector<std::string> folders;            // folders of the training data
  std::vector<std::vector<std::string>> eval;  // folders of each set
  std::vector<OpenedDialogues> train_open;     // indexed by leaf
  std::vector<std::vector<OpenedDialogues>> eval_open;
  std::unique_ptr<SpeechDataset> user;
  std::string vocabulary;
  std::vector<std::int32_t> text, text_targets, codes, code_targets;
  DialogueBatch batch;

  const OpenedDialogues& first() const {
    return train_open.empty() ? eval_open.front().front() : train_open.front();
  }
  const DialogueBatch& fill(const SpeechBatch& speech, const std::vector<OpenedDialogues>& opened);
};

const DialogueBatch& DialogueBatches::State::fill(const SpeechBatch& speech,
                                                  const std::vector<OpenedDialogues>& opened) {
  const std::int64_t books = first().codes.codec().codebooks;
  const std::int64_t b = speech.labels.shape[0], t = speech.labels.shape[1];
  const std::int64_t r = std::max<std::int64_t>(t - 1, 1);
  for (auto* rows : {&text, &text_targets}) rows->resize(static_cast<std::size_t>(b * r));
  for (auto* rows : {&codes, &code_targets}) rows->resize(static_cast<std::size_t>(b * r * books));
  const auto* labels = static_cast<const std::int32_t*>(speech.labels.data);
  const auto* lengths = static_cast<const std::int32_t*>(speech.label_lengths.data);
  const CodeControls code_controls = CodeControls::behind(first().codes.codec().codes_per_book);
  batch.text_counted = batch.codes_counted = 0;
  for (std::int64_t i = 0; i < b; ++i) {
    const std::int64_t frames = lengths[i];
    std::vector<std::uint16_t> sound;
    if (frames > 0) {
      const SpeechItem& item = speech.rows[static_cast<std::size_t>(i)].item;
      sound = opened[static_cast<std::size_t>(item.leaf)].codes.read(item.utterance, 0, frames);
    }
    const auto part = [&](std::vector<std::int32_t>& rows, std::int64_t width) {
      return std::span(rows).subspan(static_cast<std::size_t>(i * r * width),
                                     static_cast<std::size_t>(r * width));
    };
    fill_dialogue_rows({labels + i * t, static_cast<std::size_t>(frames)}, sound,
                       first().form.controls, code_controls,
                       {.text = part(text, 1),
                        .text_targets = part(text_targets, 1),
                        .codes = part(codes, books),
                        .code_targets = part(code_targets, books)});
    const std::int64_t counted = frames > 0 ? frames - 1 : 0;
    batch.text_counted += counted;
    batch.codes_counted += counted * books;
  }
  batch.user = &speech;
  batch.rows = b;
  batch.frames = r;
  batch.text = {text.data(), DType::i32, {b * r}};
  batch.text_targets = {text_targets.data(), DType::i32, {b * r}};
  batch.codes = {codes.data(), DType::i32, {b * r, books}};
  batch.code_targets = {code_targets.data(), DType::i32, {b * r * books}};
  return batch;
}

std::unique_ptr<DialogueBatches> DialogueBatches::open(Communicator& comm,
                                                       const DialogueConfig& config) {
  auto state = std::make_unique<State>();
  SpeechDataConfig user = config.user;
  enter_user_folders(user.train.inputs, state->folders);
  for (SpeechEvalSet& set : user.eval) {
    state->eval.push_back(set.folders);
    for (std::string& folder : set.folders) folder = DialogueForm::user(folder);
    set.filter.ctc = false;
  }
  user.filter.ctc = false;
  together(comm, [&] {
    for (const std::string& folder : state->folders)
      state->train_open.push_back(open_folder(folder, config.codes));
    for (const auto& folders : state->eval) {
      auto& opened = state->eval_open.emplace_back();
      for (const std::string& folder : folders) opened.push_back(open_folder(folder, config.codes));
    }
    const auto check = [&](const OpenedDialogues& one) {
      check_form(one, state->first(), config);
      check_codes(one, state->first(), config);
    };
    for (const auto& one : state->train_open) check(one);
    for (const auto& set : state->eval_open)
      for (const auto& one : set) check(one);
    const std::string path =
        fmt::format("{}/tokenizer.{}.json", DialogueForm::user(state->first().folder),
                    state->first().form.units);
    const Vocabulary vocabulary = Vocabulary::load(path);
    if (vocabulary.hash() != state->first().form.vocab_hash)
      throw DataError(fmt::format("{} is not the tokenizer of the dialogues beside it", path),
                      "pack them again with `choir prepare dialogues`");
    state->vocabulary = vocabulary.to_json();
  });
  user.labels = state->first().form.units;
  user.tokenizer_hash = state->first().form.hash();
  user.vocab_size = 0;
  state->user = SpeechDataset::open(comm, user);
  return std::unique_ptr<DialogueBatches>(new DialogueBatches(std::move(state)));
}

DialogueBatches::DialogueBatches(std::unique_ptr<State> state) : state_(std::move(state)) {}
DialogueBatches::~DialogueBatches() = default;

SpeechDataset& DialogueBatches::user() {
  return *state_->user;
}
const SpeechDataset& DialogueBatches::user() const {
  return *state_->user;
}
const DialogueForm& DialogueBatches::form() const {
  return state_->first().form;
}
const CodecDescription& DialogueBatches::codec() const {
  return state_->first().codes.codec();
}
DialogueMeaning DialogueBatches::meaning() const {
  return {form(), state_->vocabulary, codec()};
}

std::string DialogueBatches::to_string() const {
  return fmt::format(
      "{}\ntext in units '{}' of {} with padding {}, BOS {} and EOS {}; {} codebooks of {} codes "
      "by "
      "codec {:016x}",
      state_->user->to_string(), form().units, form().vocab_size, form().controls.pad,
      form().controls.bos, form().controls.eos, codec().codebooks, codec().codes_per_book,
      codec().hash);
}

const DialogueBatch& DialogueBatches::next() {
  return state_->fill(state_->user->next(), state_->train_open);
}

const DialogueBatch& DialogueBatches::eval_batch(int set, std::int64_t call) {
  return state_->fill(state_->user->eval_batch(set, call),
                      state_->eval_open[static_cast<std::size_t>(set)]);
}

std::int64_t DialogueBatches::eval_place(int set, const SpeechRow& row) const {
  const auto& opened = state_->eval_open[static_cast<std::size_t>(set)];
  std::int64_t place = row.item.utterance;
  for (std::int32_t leaf = 0; leaf < row.item.leaf; ++leaf)
    place += opened[static_cast<std::size_t>(leaf)].user.size();
  return place;
}

std::vector<DialogueTurn> DialogueBatches::eval_turns(int set, const SpeechRow& row) const {
  const OpenedDialogues& opened =
      state_->eval_open[static_cast<std::size_t>(set)][static_cast<std::size_t>(row.item.leaf)];
  return turns_of_line(opened.user.line(row.item.utterance),
                       fmt::format("dialogue {} of '{}'", row.item.utterance, opened.folder));
}

}  // namespace choir
