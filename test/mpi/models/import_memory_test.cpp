// Tests of the memory of an import from another program: a rank has memory for its share of the
// parameters and for one slab, for any model and any number of ranks that share it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/models/gpt/foreign/conversion.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"
#include "src/store/collectives.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/families.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "vocab_size": 2048,
  "max_position_embeddings": 32, "hidden_size": 256, "intermediate_size": 704,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

/// The file is in bf16, which is converted during the import.
void write_model(const std::string& folder) {
  const ForeignModel model = model_from_hf(kConfig, "config.json", false);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << kConfig;
  std::vector<TensorEntry> entries;
  for (const TensorPart& part :
       tensor_parts(model.config, described_parameters(model.config), model.dialect))
    if (!part.repeated) entries.push_back({part.name, Encoding::bf16, part.shape});
  SafetensorsWriter writer(folder, entries);
  writer.lay_out();
  std::vector<float> values;
  for (const TensorEntry& entry : entries) {
    values.assign(static_cast<std::size_t>(entry.shape.count()), 0.25f);
    writer.write(entry.name, 0, entry.shape.count(), values.data(), DType::f32);
  }
  writer.sync();
  writer.commit(writer.written());
}

TEST(ImportMemory, IsTheShareOfARankAndASlab) {
  const auto world = make_mpi_communicator(MPI_COMM_WORLD, "world");
  std::unique_ptr<test::TemporaryDirectory> place;
  std::string folder;
  if (world->rank() == 0) {
    place = std::make_unique<test::TemporaryDirectory>();
    folder = place->path();
    write_model(folder + "/llama");
  }
  share_text(*world, folder);
  const test::PeakBytes peak;
  const ImportReport report = import_model(
      *world, {.families = &test::families(), .path = folder + "/llama", .out = folder + "/run"});
  const std::int64_t most = peak.value();
  const std::int64_t wide = 4 * report.parameters;
  ASSERT_ALL_RANKS(report.parameters ==
                   2048 * 256 + 4 * (4 * 256 * 256 + 3 * 256 * 704 + 512) + 256);
  // The zeros of moments are those of the largest tensor of a rank: the embedding or the two halves
  // of the feed-forward layer. Tensors of other types are converted in chunks of a MiB. The rest
  // are tables, as large as the description.
  const std::int64_t ranks = world->size(), largest = 4 * 2048 * 256;
  const std::int64_t allowed = wide / ranks + largest / ranks + (std::int64_t{3} << 20);
  EXPECT_ALL_RANKS(most <= allowed) << most << " of " << allowed;
  EXPECT_ALL_RANKS(most >= wide / ranks) << "everything is counted";
  EXPECT_ALL_RANKS(report.largest_share <= report.parameters / ranks + 4096);
  world->barrier();
}

}  // namespace
}  // namespace choir
