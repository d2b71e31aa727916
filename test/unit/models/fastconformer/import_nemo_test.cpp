// Tests of recognisers of NeMo: tiny models of its own modules with weights by a formula and logits
// that NeMo computed, read from an archive in NeMo's format.
#include "src/models/fastconformer/foreign/nemo.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "kernels/relative_attention/relative_attention.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/core/yaml_reader.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/torch/nemo_archive.hpp"
#include "test/support/families.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/store/torch/archives.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::refusal;
using test::tar_member;
using namespace std::string_literals;

// C 16, H 4, 2 layers, F 32, K 5, Cs 4, 80 mels, V 5; strings as PyYAML folds and quotes them.
std::string description(const std::string& norm) {
  return "decoder:\n  _target_: nemo.collections.asr.modules.ConvASRDecoder\n  feat_in: 16\n"
         "  num_classes: 5\n  vocabulary:\n  - <unk>\n  - \"\\u2581a\"\n  - b\n  - '''c'\n  - d\n"
         "encoder:\n  _target_: nemo.collections.asr.modules.ConformerEncoder\n"
         "  att_context_size:\n  - -1\n  - -1\n  causal_downsampling: false\n"
         "  conv_kernel_size: 5\n  conv_norm_type: " +
         norm +
         "\n  d_model: 16\n  dropout: 0.1\n  feat_in: 80\n  feat_out: -1\n"
         "  ff_expansion_factor: 2\n  n_heads: 4\n  n_layers: 2\n"
         "  self_attention_model: rel_pos\n  subsampling: dw_striding\n"
         "  subsampling_conv_channels: 4\n  subsampling_factor: 8\n  untie_biases: true\n"
         "  xscaling: true\nnemo_version: 2.5.0\n"
         "preprocessor:\n  dither: 1.0e-05\n  features: 80\n  frame_splicing: 1\n  n_fft: 512\n"
         "  normalize: per_feature\n  pad_to: 0\n  sample_rate: 16000\n  window: hann\n"
         "  window_size: 0.025\n  window_stride: 0.01\nsample_rate: 16000\n";
}

std::map<std::string, std::vector<int>> shapes(bool batch_norm) {
  std::map<std::string, std::vector<int>> all;
  const auto pair = [&](const std::string& name, std::vector<int> weight) {
    all[name + ".bias"] = {weight.front()};
    all[name + ".weight"] = std::move(weight);
  };
  pair("decoder.decoder_layers.0", {6, 16, 1});
  pair("encoder.pre_encode.out", {16, 40});
  for (const int i : {0, 2, 5}) pair("encoder.pre_encode.conv." + std::to_string(i), {4, 1, 3, 3});
  for (const int i : {3, 6}) pair("encoder.pre_encode.conv." + std::to_string(i), {4, 4, 1, 1});
  for (const char* n : {"0", "1"}) {
    const std::string layer = "encoder.layers."s + n + ".";
    for (const char* norm :
         {"norm_conv", "norm_feed_forward1", "norm_feed_forward2", "norm_out", "norm_self_att"})
      pair(layer + norm, {16});
    for (const char* one : {"feed_forward1", "feed_forward2"}) {
      pair(layer + one + ".linear1", {32, 16});
      pair(layer + one + ".linear2", {16, 32});
    }
    for (const char* one : {"q", "k", "v", "out"})
      pair(layer + "self_attn.linear_" + one, {16, 16});
    all[layer + "self_attn.linear_pos.weight"] = {16, 16};
    all[layer + "self_attn.pos_bias_u"] = all[layer + "self_attn.pos_bias_v"] = {4, 4};
    pair(layer + "conv.pointwise_conv1", {32, 16, 1});
    pair(layer + "conv.pointwise_conv2", {16, 16, 1});
    pair(layer + "conv.depthwise_conv", {16, 1, 5});
    pair(layer + "conv.batch_norm", {16});
    if (!batch_norm) continue;
    all[layer + "conv.batch_norm.running_mean"] = {16};
    all[layer + "conv.batch_norm.running_var"] = {16};
    all[layer + "conv.batch_norm.num_batches_tracked"] = {};
  }
  return all;
}

/// A state_dict in the format of torch.save, in which every tensor has its own storage.
std::string weights(const std::map<std::string, std::vector<int>>& tensors,
                    const std::string& not_finite) {
  test::ZipBuilder zip;
  std::string pickle = "\x80\x02}";
  std::vector<std::string> storages;
  const auto text = [](const std::string& word) {
    return "X" + bytes_of(static_cast<std::uint32_t>(word.size())) + word;
  };
  const auto number = [](int n) { return "J" + bytes_of(static_cast<std::int32_t>(n)); };
  int k = 0;
  for (const auto& [name, shape] : tensors) {
    int count = 1;
    for (const int extent : shape) count *= extent;
    std::string sizes = "(", strides = "(";
    for (int extent : shape) sizes += number(extent);
    for (int left = count; const int extent : shape) strides += number(left /= extent);
    const bool counter = shape.empty();
    std::string storage;
    for (int i = 0; i < count; ++i) {
      const double s = std::sin(0.37 * i + k);
      const bool one = (name.find("norm") != std::string::npos && name.ends_with(".weight")) ||
                       name.ends_with("running_var");
      storage += counter ? bytes_of(std::int64_t{7})
                 : name == not_finite && i == 3
                     ? bytes_of(std::nanf(""))
                     : bytes_of(static_cast<float>(one ? 1 + 0.1 * s : 0.3 * s));
    }
    pickle += text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" +
              (counter ? "LongStorage\n" : "FloatStorage\n") + text(std::to_string(k)) +
              text("cpu") + number(count) + "tQK\0"s + sizes + "t" + strides + "t\x89)tRs";
    storages.push_back(std::move(storage));
    ++k;
  }
  zip.add("archive/data.pkl", pickle + ".");
  zip.add("archive/byteorder", "little");
  for (std::size_t i = 0; i < storages.size(); ++i)
    zip.add("archive/data/" + std::to_string(i), storages[i]);
  return zip.bytes();
}

struct Archive {
  bool batch_norm = true;
  std::function<void(std::string&)> change{};
  std::function<void(std::map<std::string, std::vector<int>>&)> change_shapes{};
  ImportRequest request{.families = &test::families()};
  std::string not_finite{};  // the tensor whose element 3 is NaN
};

/// Features in, logits out: the layers of a FastConformer with the weights of a checkpoint.
class Recogniser {
 public:
  Recogniser(const std::string& run, bool batch_norm)
      : alone_(make_null_communicator("alone", 0, 1)),
        arena_(device_, std::size_t{16} << 20),
        pass_(Stream(device_), arena_, precision_of("fp64"), 1, {}) {
    parameters_.begin_bucket("all");
    subsampling_ = std::make_unique<ConvSubsampling>(
        parameters_, "encoder.subsampling",
        ConvSubsampling::Options{.channels = 4, .width = 16, .factor = 4});
    for (const char* name : {"encoder.blocks.0", "encoder.blocks.1"})
      blocks_.push_back(std::make_unique<ConformerBlock>(
          parameters_, name,
          ConformerBlock::Options{
              .width = 16, .hidden = 32, .heads = 4, .kernel = 5, .batch_norm = batch_norm}));
    head_ = std::make_unique<Linear>(parameters_, "head", 16, 6, Linear::Options{});
    parameters_.place(1);
    memory_ = Buffer(device_, static_cast<std::size_t>(parameters_.flat_size()) * 8);
    parameters_.bind(precision_of("fp64"), memory_.data(), memory_.data(), nullptr);
    statistics_ = std::make_unique<StatisticsStorage>(parameters_, precision_of("fp64"), device_);
    load(run);
  }

  /// [9, 6] of x[m][t] = sin(0.11 (67 m + t)).
  std::vector<double> logits() {
    constexpr std::int64_t kFrames = 67, kMels = 80;
    std::vector<double> x(kFrames * kMels);
    for (std::int64_t t = 0; t < kFrames; ++t)
      for (std::int64_t m = 0; m < kMels; ++m)
        x[static_cast<std::size_t>(t * kMels + m)] =
            std::sin(0.11 * static_cast<double>(67 * m + t));
    std::vector<std::int32_t> lengths{67, 34, 17, 9};
    const std::int64_t id = 0;
    pass_.begin(Mode::generate,
                {.batch = 1, .tokens = 9, .lengths = &lengths[3], .sample_ids = &id}, 0);
    Tensor stream =
        subsampling_->forward(pass_, Tensor().view({x.data(), DType::f64, {1, kFrames, kMels}}),
                              {lengths.data(), DType::i32, {4, 1}});
    Buffer tables(device_, static_cast<std::size_t>(ops::relative_position_table_size(16)) * 8);
    const TensorView table{tables.data(), DType::f64, {ops::relative_position_table_size(16)}};
    ops::make_relative_position_tables(pass_.stream(), 16, table);
    const Tensor positions = pass_.allocate({17, 16}, "positions");
    ops::relative_positions(pass_.stream(), table, positions);
    for (const auto& block : blocks_) stream = block->forward(pass_, stream, positions);
    const Tensor result = head_->forward(pass_, stream, false);
    return {result.as<double>(), result.as<double>() + result.count()};
  }

 private:
  void load(const std::string& run) {
    std::vector<StoredTensor> list;
    for (const Parameter& p : parameters_.parameters())
      list.push_back({.name = "parameters/" + p.name,
                      .dtype = DType::f64,
                      .shape = p.shape,
                      .pieces = {{0, p.count(), p.value.data}},
                      .converts = true});
    for (const RunningStatistics& norm : parameters_.running_statistics())
      for (const bool mean : {true, false})
        list.push_back({.name = std::string(kRunningStatistics) + norm.name +
                                (mean ? ".running_mean" : ".running_variance"),
                        .dtype = DType::f64,
                        .shape = norm.weight->shape,
                        .pieces = {{0, 16, (mean ? norm.mean : norm.variance).data}},
                        .converts = true});
    load_checkpoint(open_checkpoint(run, *alone_), list, *alone_, "nothing else");
  }

  CpuDevice device_;
  std::unique_ptr<Communicator> alone_;
  Arena arena_;
  ParameterSet parameters_;
  Pass pass_;
  std::unique_ptr<ConvSubsampling> subsampling_;
  std::vector<std::unique_ptr<ConformerBlock>> blocks_;
  std::unique_ptr<Linear> head_;
  Buffer memory_;
  std::unique_ptr<StatisticsStorage> statistics_;
};

class NemoImportTest : public testing::Test {
 protected:
  std::string run() const { return place_.path() + "/run"; }
  ImportReport imported(const Archive& archive) {
    std::string yaml = description(archive.batch_norm ? "batch_norm" : "layer_norm");
    if (archive.change) archive.change(yaml);
    auto tensors = shapes(archive.batch_norm);
    if (archive.change_shapes) archive.change_shapes(tensors);
    const std::string path = place_.path() + "/tiny.nemo";
    std::ofstream(path, std::ios::binary)
        << tar_member("./", "", '5') << tar_member("./model_config.yaml", yaml)
        << tar_member("./model_weights.ckpt", weights(tensors, archive.not_finite))
        << std::string(1024, '\0');
    EXPECT_TRUE(is_nemo(path));
    ImportRequest request = archive.request;
    request.path = path, request.out = run();
    const auto alone = make_null_communicator("alone", 0, 1);
    return import_nemo(*alone, request);
  }
  std::string refused(const Archive& archive) {
    std::string words = "accepted";
    try {
      imported(archive);
    } catch (const Error& error) {
      words = error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(run())) << words;
    return words;
  }
  static Archive with(const std::string& line, const std::string& other) {
    return {
        .change = [=](std::string& yaml) { yaml.replace(yaml.find(line), line.size(), other); }};
  }
  test::TemporaryDirectory place_;
};

void expect_row(const std::vector<double>& logits, int row, const std::vector<double>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(logits[static_cast<std::size_t>(row) * 6 + i], wanted[i], 2e-6) << row << " " << i;
}

// NeMo computed in fp32: its logits of 3 have rounding errors of some 1e-7 in sums of 40 terms.
TEST_F(NemoImportTest, BatchNormComputesWhatNemoDoes) {
  const ImportReport report = imported({});
  EXPECT_EQ(report.parameters, 10166);
  const std::vector<double> logits = Recogniser(run(), true).logits();
  expect_row(logits, 0,
             {-2.83638152, -2.26666224, -1.40176426, -0.35498018, 0.73680193, 1.73100121});
  expect_row(logits, 8,
             {-2.81474261, -2.24305401, -1.37926665, -0.33652822, 0.74880099, 1.73498198});
  double sum = 0;
  for (const double x : logits) sum += std::abs(x);
  EXPECT_NEAR(sum, 81.36665368, 1e-4);
}

TEST_F(NemoImportTest, LayerNormComputesWhatNemoDoes) {
  imported({.batch_norm = false});
  const std::vector<double> logits = Recogniser(run(), false).logits();
  expect_row(logits, 0, {-3.03741293, -1.98636656, -0.67670887, 0.72024414, 2.0219214, 3.05835904});
  double sum = 0;
  for (const double x : logits) sum += std::abs(x);
  EXPECT_NEAR(sum, 103.63524757, 1e-4);
}

TEST_F(NemoImportTest, WhatIsAnotherModelIsRefusedByItsName) {
  const auto says = [&](const char* line, const char* other, const char* words) {
    EXPECT_SAYS(refused(with(line, other)), words);
  };
  says("subsampling: dw_striding", "subsampling: striding", "encoder.subsampling = \"striding\"");
  says("self_attention_model: rel_pos", "self_attention_model: abs_pos",
       "encoder.self_attention_model = \"abs_pos\"");
  says("  xscaling: true\n", "  xscaling: true\n  squeeze: 2\n",
       "encoder.squeeze = 2: unknown key");
  says("window: hann", "window: hamming", "preprocessor.window = \"hamming\"");
  says("causal_downsampling: false", "causal_downsampling: true", "conv_context_size = nothing");
  says("decoder:\n", "joint:\n", "describes a transducer (RNN-T or TDT), which has no CTC head");
  says("decoder:\n", "transf_decoder:\n", "describes an encoder with an attention decoder");
  says("nemo_version: 2.5.0\n",
       "nemo_version: 2.5.0\ntarget: "
       "nemo.collections.asr.models.aed_multitask_models.EncDecMultiTaskModel\n",
       "describes the class EncDecMultiTaskModel, an encoder with an attention decoder (Canary)");
  says("nemo_version: 2.5.0\n",
       "nemo_version: 2.5.0\ntarget: nemo.collections.asr.models.EncDecSpeakerLabelModel\n",
       "describes the class EncDecSpeakerLabelModel, a model of speakers");
  says("decoder:\n", "other:\n", "decoder.num_classes is not a number of symbols");
  says("d_model: 16", "d_model: 32", "of another shape");
  says("n_layers: 2", "n_layers: 1", "unused: encoder.layers.1.");
  says("n_layers: 2", "n_layers: 3", "missing: encoder.layers.2.");
  says("features: 80", "features: 64", "encoder.feat_in is 80");
  says("subsampling_conv_channels: 4", "subsampling_conv_channels: 0",
       "encoder.subsampling_conv_channels = 0: expected a whole number from 1");
  says("n_heads: 4", "n_heads: 0", "encoder.n_heads = 0: expected a whole number from 1");
}

// Flags allow a part to be missing, but not everything, because the run would have random weights.
TEST_F(NemoImportTest, AnArchiveOfWhichNoNameIsKnownIsRefusedWhateverIsAllowed) {
  Archive archive;
  archive.request.allow_missing = archive.request.allow_unused = true;
  archive.change_shapes = [](std::map<std::string, std::vector<int>>& all) {
    std::map<std::string, std::vector<int>> renamed;
    for (const auto& [name, shape] : all) renamed["model." + name] = shape;
    all = renamed;
  };
  EXPECT_SAYS(refused(archive), "has no tensor that the described model has");
}

TEST_F(NemoImportTest, WeightsThatAreNotFiniteAreRefusedByTheirName) {
  for (const char* name : {"encoder.layers.1.conv.pointwise_conv1.weight",
                           "encoder.layers.0.conv.batch_norm.running_mean"}) {
    const Archive archive{.not_finite = name};
    EXPECT_SAYS(refused(archive), std::string(name) + ": 1 of ");
    EXPECT_SAYS(refused(archive), "the first is element 3");
  }
}

// q, k and v are one parameter here: if a part is missing, all of it starts from new values.
TEST_F(NemoImportTest, APartOfAParameterBeginsAnewAndIsCounted) {
  Archive archive;
  archive.request.allow_missing = true;
  archive.change_shapes = [](std::map<std::string, std::vector<int>>& all) {
    all.erase("encoder.layers.0.self_attn.linear_k.weight");
  };
  const ImportReport report = imported(archive);
  EXPECT_EQ(report.missing, std::vector<std::string>{"encoder.layers.0.self_attn.linear_k.weight"});
  EXPECT_EQ(report.fresh, 256);
  std::vector<float> qkv(48 * 16);
  const auto alone = make_null_communicator("alone", 0, 1);
  load_checkpoint(open_checkpoint(run(), *alone),
                  {{"parameters/encoder.blocks.0.attention.qkv.weight",
                    DType::f32,
                    {48, 16},
                    {{0, 48 * 16, qkv.data()}}}},
                  *alone, "nothing else");
  EXPECT_EQ(std::count(qkv.begin() + 256, qkv.begin() + 512, 0.0f), 0);
}

TEST_F(NemoImportTest, BiasesThatAreNotThereStayZero) {
  Archive archive = with("  xscaling: true\n", "  xscaling: true\n  use_bias: false\n");
  archive.change_shapes = [](std::map<std::string, std::vector<int>>& all) {
    std::erase_if(all, [](const auto& one) {
      return one.first.starts_with("encoder.layers.") && one.first.ends_with(".bias") &&
             one.first.find("norm") == std::string::npos;
    });
  };
  const ImportReport report = imported(archive);
  EXPECT_TRUE(report.missing.empty());
  std::ifstream deck(run() + "/deck.json");
  const std::string text((std::istreambuf_iterator<char>(deck)), {});
  EXPECT_NE(text.find("encoder.blocks.*.attention.qkv.bias"), std::string::npos);
  EXPECT_EQ(text.find("encoder.blocks.*.attention_norm.bias"), std::string::npos);
}

/// Every tensor of NeMo with its shape, its type and its bytes.
std::map<std::string, std::string> contents(const std::string& path) {
  const auto weights = NemoArchive(path).open_weights();
  std::map<std::string, std::string> all;
  for (const TensorEntry& entry : weights->tensors()) {
    std::string bytes(static_cast<std::size_t>(entry.bytes()), '\0');
    weights->read_stored(entry.name, 0, entry.shape.count(),
                         reinterpret_cast<std::byte*>(bytes.data()));
    all[entry.name] = std::string(name_of(entry.encoding)) + to_string(entry.shape) + bytes;
  }
  return all;
}

class NemoExportTest : public NemoImportTest {
 protected:
  std::string out() const { return place_.path() + "/back.nemo"; }
  ExportReport exported(const std::string& vocabulary = {}) {
    const auto alone = make_null_communicator("alone", 0, 1);
    const Checkpoint checkpoint = open_checkpoint(run(), *alone);
    return export_nemo(*alone, checkpoint, config_,
                       {.format = "nemo", .out = out(), .vocabulary = vocabulary});
  }
  FastConformerConfig config_ = [] {
    FastConformerConfig c{.n_layer = 2,
                          .n_embd = 16,
                          .n_head = 4,
                          .ffn_width = 32,
                          .conv_kernel = 5,
                          .subsampling_channels = 4,
                          .conv_norm = ConvNorm::batchnorm,
                          .vocab_size = 5};
    return c;
  }();
};

// The counters of batches, 7 in the archive, are not in a run. Window and filters are added.
TEST_F(NemoExportTest, AnImportHasTheTensorsOfItsArchiveBitForBit) {
  for (const bool batch_norm : {true, false}) {
    std::filesystem::remove_all(run());
    std::filesystem::remove(out());
    imported({.batch_norm = batch_norm});
    config_.conv_norm = batch_norm ? ConvNorm::batchnorm : ConvNorm::layernorm;
    const ExportReport report = exported();
    EXPECT_EQ(report.files, std::vector<std::string>{out()});
    auto wanted = contents(place_.path() + "/tiny.nemo"), written = contents(out());
    EXPECT_TRUE(written.at("preprocessor.featurizer.fb").starts_with("F32[1, 80, 257]"));
    EXPECT_TRUE(written.at("preprocessor.featurizer.window").starts_with("F32[400]"));
    std::erase_if(written, [](const auto& one) { return one.first.starts_with("preprocessor."); });
    for (auto* all : {&wanted, &written})
      for (auto& [name, bytes] : *all)
        if (name.ends_with("num_batches_tracked")) bytes = bytes.substr(0, 5);
    EXPECT_EQ(written.size(), wanted.size());
    for (const auto& [name, bytes] : wanted)
      EXPECT_TRUE(written[name] == bytes) << name << " " << written[name].substr(0, 16);
  }
}

TEST_F(NemoExportTest, ADescriptionIsReadAsItsModel) {
  config_.causal = true, config_.subsampling = 4, config_.xscaling = false;
  config_.conv_norm = ConvNorm::layernorm, config_.normalise = false;
  config_.context_style = ContextStyle::chunked;
  config_.left_context = 6, config_.right_context = 2;
  // NeMo would make 105 samples of 106 / 11025 seconds.
  config_.mel = {.sample_rate = 11025,
                 .window = 201,
                 .hop = 106,
                 .fft = 256,
                 .mels = 40,
                 .high = 3700.5,
                 .preemphasis = 0,
                 .dither = 1e-6};
  config_.augment = {
      .time_masks = 3, .frequency_masks = 1, .time_width = 0.07, .frequency_width = 13};
  const NemoModel model{config_,
                        true,
                        "decoder.",
                        "0f_tokenizer.model",
                        {"<unk>", "\u2581\"a", "\\", "\U0001F600", "null"}};
  const std::string text = nemo_description(model);
  const NemoModel read = nemo_model_of(read_yaml(text, "it"), "it", false);
  EXPECT_EQ(nemo_description(read), text);
  EXPECT_NE(text.find("window_stride: null\n  n_window_stride: 106\n"), std::string::npos) << text;
  EXPECT_EQ(read.tokenizer, model.tokenizer);
  EXPECT_EQ(read.labels, model.labels);
  const FastConformerConfig& c = read.config;
  EXPECT_TRUE(c.causal && !c.xscaling && !c.normalise && read.biases);
  EXPECT_EQ(c.conv_norm, ConvNorm::layernorm);
  EXPECT_EQ(c.context_style, ContextStyle::chunked);
  EXPECT_EQ((std::vector{c.left_context, c.right_context, c.n_layer, c.n_head, c.conv_kernel,
                         c.subsampling, c.ffn_width, c.vocab_size}),
            (std::vector<std::int64_t>{6, 2, 2, 4, 5, 4, 32, 5}));
  EXPECT_EQ((std::vector{c.mel.sample_rate, c.mel.window, c.mel.hop, c.mel.fft, c.mel.mels}),
            (std::vector<std::int64_t>{11025, 201, 106, 256, 40}));
  EXPECT_EQ((std::vector{c.mel.high, c.mel.preemphasis, c.mel.dither}),
            (std::vector{3700.5, 0.0, 1e-6}));
  EXPECT_EQ(
      (std::vector{c.augment.time_masks, c.augment.frequency_masks, c.augment.frequency_width}),
      (std::vector<std::int64_t>{3, 1, 13}));
  EXPECT_EQ(c.augment.time_width, 0.07);
}

TEST_F(NemoImportTest, MasksOfTheTrainingAreTakenAndOthersAreNamed) {
  const std::string rest = "nemo_version: 2.5.0\n";
  const ImportReport report =
      imported(with(rest, rest + "spec_augment:\n  _target_: x\n  freq_masks: 1\n  time_masks: 4\n"
                                 "  freq_width: 20\n  time_width: 30\n  rect_masks: 5\n"));
  ASSERT_EQ(report.unused.size(), 1);
  EXPECT_SAYS(report.unused.front(), "spec_augment.rect_masks = 5 (no key of a deck");
  std::ifstream file(run() + "/deck.json");
  const auto model = nlohmann::json::parse(file)["model"];
  EXPECT_EQ(model["freq_masks"], 1);
  EXPECT_EQ(model["freq_width"], 20);
  EXPECT_EQ(model["time_masks"], 4);
  EXPECT_EQ(model["time_width"], 30);
}

TEST_F(NemoExportTest, CharactersAreTheLabelsAndComeBack) {
  imported({});
  const Vocabulary characters = Vocabulary::characters({U' ', U'a', U'\'', U'\u00e9', U'z'});
  exported(characters.to_json());
  std::filesystem::remove_all(run());
  ImportRequest request{.families = &test::families(), .path = out(), .out = run()};
  const auto alone = make_null_communicator("alone", 0, 1);
  const ImportReport report = import_nemo(*alone, request);
  EXPECT_TRUE(report.tokenizer.empty());
  const TrainMeta meta = TrainMeta::parse(open_checkpoint(run(), *alone).json, run());
  EXPECT_EQ(Vocabulary::from_json(meta.vocabulary, "it").hash(), characters.hash());
}

// NeMo's own models of characters have the order " a...z'": the rows of the head follow the
// symbols, and the blank stays last.
TEST_F(NemoExportTest, CharactersInAnotherOrderTakeTheirRowsWithThem) {
  const std::string own = "  vocabulary:\n  - <unk>\n  - \"\\u2581a\"\n  - b\n  - '''c'\n  - d\n";
  const std::string list = "- ' '\n  - a\n  - b\n  - c\n  - ''''\n";
  for (const std::string& labels : {"  vocabulary:\n  " + list, "labels:\n  " + list}) {
    std::filesystem::remove_all(run());
    std::filesystem::remove(out());
    EXPECT_TRUE(imported(with(own, labels)).tokenizer.empty());
    const auto alone = make_null_communicator("alone", 0, 1);
    const std::string vocabulary =
        TrainMeta::parse(open_checkpoint(run(), *alone).json, run()).vocabulary;
    EXPECT_EQ(Vocabulary::from_json(vocabulary, "it").hash(),
              Vocabulary::characters({U' ', U'\'', U'a', U'b', U'c'}).hash());
    exported(vocabulary);
    const auto there = contents(place_.path() + "/tiny.nemo"), back = contents(out());
    for (const auto& [tensor, columns] : {std::pair{"weight", 16}, {"bias", 1}}) {
      const std::string name = std::string("decoder.decoder_layers.0.") + tensor;
      const std::size_t row = 4 * static_cast<std::size_t>(columns);
      const auto rows_of = [&](const std::string& all) { return all.substr(all.size() - 6 * row); };
      const std::string nemo = rows_of(there.at(name)), ours = rows_of(back.at(name));
      constexpr std::array<std::size_t, 6> kRows{0, 4, 1, 2, 3, 5};
      for (std::size_t i = 0; i < kRows.size(); ++i)
        EXPECT_TRUE(ours.substr(i * row, row) == nemo.substr(kRows[i] * row, row)) << name << i;
    }
  }
}

TEST_F(NemoExportTest, LabelsThatAreNoSingleCharactersWriteNoText) {
  const ImportReport report = imported({});
  ASSERT_EQ(report.tokenizer.size(), 1);
  EXPECT_SAYS(report.tokenizer.front(), "its labels are not one character each");
}

TEST_F(NemoExportTest, WhatNemoLacksIsRefusedByItsKey) {
  imported({});
  const auto refused = [&](const std::string& vocabulary, const char* words) {
    std::string said = "accepted";
    try {
      exported(vocabulary);
    } catch (const DeckError& error) {
      said = error.what();
    }
    EXPECT_SAYS(said, words);
    EXPECT_FALSE(std::filesystem::exists(out()));
  };
  const FastConformerConfig whole = config_;
  config_.norm_eps = 1e-6;
  refused("", "model.norm_eps = 1e-06");
  config_ = whole, config_.ffn_width = 24;
  refused("", "model.ffn_width = 24");
  config_ = whole, config_.vocab_size = 256;
  refused(Vocabulary::bytes().to_json(), "data.labels of the kind 'byte'");
}

}  // namespace
}  // namespace choir
