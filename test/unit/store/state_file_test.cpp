#include "src/store/state_file.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include "src/store/slab_io.hpp"
#include "src/store/state_file.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

/// Reads a dataset through HDF5 as doubles: the library is the reference for offsets and types.
std::vector<double> through_hdf5(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const hid_t space = H5Dget_space(set);
  std::vector<double> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0)
      << name;
  H5Sclose(space);
  H5Dclose(set);
  H5Fclose(file);
  return values;
}

template <class T>
std::vector<double> written_and_read(DType dtype, std::vector<T> values) {
  const test::TemporaryDirectory run;
  const std::string path = run.path() + "/state.h5";
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<char> other(200000, 1);
  const std::vector<StoredTensor> tensors{
      {"first/other", DType::u8, {200000}, {{0, 200000, other.data()}}, nullptr},
      {"deep/er/name.weight", dtype, {1, count}, {{0, count, values.data()}}, nullptr}};
  const auto records = lay_out_state_file(path, test::meta_of(3), tensors);
  const File file(path, File::Mode::write);
  for (const std::size_t i : {0, 1}) write_pieces(file, records[i], tensors[i], {});
  return through_hdf5(path, "deep/er/name.weight");
}

TEST(CheckpointStateFile, Hdf5ReadsWhatWasWrittenPastIt) {
  const std::vector<double> values{0.0, 1.0, -2.5, 3.0, 100.0};
  EXPECT_EQ(written_and_read(DType::f64, values), values);
  EXPECT_EQ(written_and_read(DType::f32, std::vector<float>{0, 1, -2.5f, 3, 100}), values);
  EXPECT_EQ(written_and_read(DType::bf16, std::vector<bf16>{bf16(0.f), bf16(1.f), bf16(-2.5f),
                                                            bf16(3.f), bf16(100.f)}),
            values);
  // IEEE half precision: 0, 1, -2.5, 3, 100
  EXPECT_EQ(
      written_and_read(DType::f16, std::vector<std::uint16_t>{0, 0x3c00, 0xc100, 0x4200, 0x5640}),
      values);
  EXPECT_EQ(written_and_read(DType::i64, std::vector<std::int64_t>{-5, 1LL << 40}),
            (std::vector<double>{-5, static_cast<double>(1LL << 40)}));
  EXPECT_EQ(written_and_read(DType::i32, std::vector<std::int32_t>{-5, 7}),
            (std::vector<double>{-5, 7}));
  EXPECT_EQ(written_and_read(DType::u16, std::vector<std::uint16_t>{65535}),
            (std::vector<double>{65535}));
}

TEST(CheckpointStateFile, BigTensorsBeginOnPagesAndTheEstimateHolds) {
  const test::TemporaryDirectory run;
  const std::string path = run.path() + "/state.h5";
  std::vector<StoredTensor> tensors;
  for (int i = 0; i < 300; ++i)
    tensors.push_back({fmt::format("optimizer/m/blocks.{}.some_rather_long_name.weight", i),
                       DType::f32,
                       {i * 100 + 1, 3},
                       {},
                       nullptr});
  CheckpointMeta meta = test::meta_of(3);
  meta.json.assign(200000, 'x');  // larger than HDF5's small attributes
  const auto records = lay_out_state_file(path, meta, tensors);
  for (const TensorRecord& record : records) {
    const bool big = record.bytes() >= 65536;
    EXPECT_TRUE(!big || record.offset % 4096 == 0) << record.name;
  }
  const std::int64_t bytes = File(path, File::Mode::read).bytes();
  const std::int64_t estimate = state_file_estimate(meta, tensors);
  EXPECT_LE(bytes, estimate);
  EXPECT_LT(estimate, bytes + 300 * 8192);
  const auto regions = regions_of(records, bytes);
  const TextRecord text = locate_meta(File(path, File::Mode::read), regions, meta.json);
  EXPECT_EQ(text.bytes, 200000);
  EXPECT_THROW(locate_meta(File(path, File::Mode::read), regions, "other"), StorageError);
}

TEST(CheckpointStateFile, TheSameStateMakesTheSameBytes) {
  const test::TemporaryDirectory run;
  std::string files[2];
  for (std::string& text : files) {
    const std::string path = run.path() + "/state.h5";
    lay_out_state_file(path, test::meta_of(3), test::TensorSet(test::Cut::nothing, 0, 1).tensors());
    std::ifstream stream(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(stream), {});
    if (&text == files) usleep(1100000);  // HDF5's times are whole seconds
  }
  EXPECT_FALSE(files[0].empty());
  EXPECT_TRUE(files[0] == files[1]);
}

TEST(CheckpointStateFile, AFolderThatIsNotThereIsAnError) {
  const test::TemporaryDirectory run;
  EXPECT_THROW(lay_out_state_file(run.path() + "/no/state.h5", test::meta_of(1), {}), StorageError);
}

}  // namespace
}  // namespace choir
