// Tests of the copies of a queued step: every field of every micro-batch, of any shape that was
// planned.
#include "src/train/step/step_slot.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "src/models/gpt/gpt_config.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "choir/models/family.hpp"
#include "src/device/cpu_device.hpp"
#include "test/support/separate_device.hpp"

namespace choir {
namespace {

FastConformerConfig small_speech() {
  FastConformerConfig c;
  c.vocab_size = 29;
  c.subsampling = 4;
  return c;
}

const std::vector<BatchShape> kShapes{{.samples = 3, .audio_samples = 3200, .labels = 5},
                                      {.samples = 1, .audio_samples = 160, .labels = 0},
                                      {.samples = 2, .audio_samples = 6401, .labels = 7}};

/// Bytes that differ from position to position, from field to field and from batch to batch.
std::unique_ptr<HostBatch> numbered(const BatchShape& shape, int salt) {
  auto host = std::make_unique<HostBatch>(small_speech(), shape);
  int field = 0;
  for (const BatchField& named : host->batch.fields()) {
    ++field;
    auto* bytes = static_cast<unsigned char*>(named.view.data);
    for (std::size_t i = 0; i < named.view.bytes(); ++i)
      bytes[i] =
          static_cast<unsigned char>(7 * i + 31 * static_cast<std::size_t>(field + 8 * salt));
  }
  host->batch.first_sample = 100 + salt;
  return host;
}

StepSlot::Options options() {
  StepSlot::Options slot{.micro_batches = 3};
  for (const BatchShape& shape : kShapes)
    slot.batch_bytes =
        std::max(slot.batch_bytes, bytes_of_fields(speech_fields(small_speech().stages(), shape)));
  return slot;
}

TEST(StepSlot, CopiesEveryFieldOfEveryShape) {
  test::SeparateDevice device;
  const SideStream copies(device);
  const Stream stream(device);
  StepSlot slot(device, options());
  for (int turn = 0; turn < 2; ++turn) {  // other shapes use the slots again
    for (int j = 0; j < 3; ++j) {
      const auto host = numbered(kShapes[static_cast<std::size_t>((j + turn) % 3)], j + turn);
      slot.stage(copies.stream(), j, host->batch);
      for (const BatchField& field : host->batch.fields())  // free again
        std::memset(field.view.data, 0, field.view.bytes());
    }
    slot.publish(copies.stream(), stream);
    for (int j = 0; j < 3; ++j) {
      const auto expected = numbered(kShapes[static_cast<std::size_t>((j + turn) % 3)], j + turn);
      ModelBatch staged = slot.staged(j);
      EXPECT_EQ(staged.samples, expected->batch.samples);
      std::int64_t first = 0;
      device.copy_to_host(&first, staged.first_sample_on_device, sizeof first);
      EXPECT_EQ(first + staged.first_sample, expected->batch.first_sample);
      const auto got = staged.fields(), wanted = expected->batch.fields();
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t f = 0; f < got.size(); ++f) {
        const TensorView &copy = got[f].view, &original = wanted[f].view;
        EXPECT_EQ(got[f].name, wanted[f].name);
        EXPECT_EQ(copy.shape, original.shape) << got[f].name;
        EXPECT_EQ(copy.dtype, original.dtype) << got[f].name;
        std::vector<std::byte> bytes(copy.bytes());
        if (bytes.empty()) continue;
        device.copy_to_host(bytes.data(), copy.data, bytes.size());
        EXPECT_EQ(std::memcmp(bytes.data(), original.data, bytes.size()), 0) << got[f].name;
      }
    }
  }
}

TEST(StepSlot, RefusesWhatWasNotPlanned) {
  CpuDevice device;
  const SideStream copies(device);
  StepSlot slot(device, options());
  const HostBatch larger(small_speech(), {.samples = 3, .audio_samples = 6401, .labels = 7});
  EXPECT_THROW(slot.stage(copies.stream(), 0, larger.batch), Error);
  StepSlot::Options fixed = options();
  fixed.fixed = true;
  StepSlot recorded(device, fixed);
  EXPECT_THROW(recorded.stage(copies.stream(), 0, numbered(kShapes[0], 0)->batch), Error);
  EXPECT_NO_THROW(recorded.stage(copies.stream(), 0, numbered(kShapes[2], 0)->batch));
}

TEST(HostBatch, IsFullOrAllPadding) {
  const FastConformerConfig config = small_speech();
  HostBatch host(config, kShapes[0]);
  ModelBatch& batch = host.batch;
  EXPECT_EQ(batch["audio"].shape, (Shape{3, 3200}));
  EXPECT_EQ(batch["frame_lengths"].shape, (Shape{3, 3}));
  for (int row = 0; row < 3; ++row) {
    // 3200 / 160 = 20 frames of features, 10 and 5 after the halvings.
    EXPECT_EQ(batch["frame_lengths"].as<std::int32_t>()[row], 20);
    EXPECT_EQ(batch["frame_lengths"].as<std::int32_t>()[3 + row], 10);
    EXPECT_EQ(batch["frame_lengths"].as<std::int32_t>()[6 + row], 5);
    EXPECT_EQ(batch["label_lengths"].as<std::int32_t>()[row], 5);
  }
  host.clear();
  for (int i = 0; i < 9; ++i) EXPECT_EQ(batch["frame_lengths"].as<std::int32_t>()[i], 0);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(batch["labels"].as<std::int32_t>()[i], -1);
  HostBatch tokens(GptConfig{.vocab_size = 3, .block_size = 8}, {.samples = 2, .tokens = 8});
  EXPECT_EQ(tokens.batch["inputs"].count(), 16);
  EXPECT_EQ(tokens.batch.find("audio"), nullptr);
  EXPECT_THROW(tokens.batch["audio"], Error);
  EXPECT_THROW(tokens.clear(), Error);
}

}  // namespace
}  // namespace choir
