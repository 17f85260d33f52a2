#include "profile/hdf5_file.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor::hdf5 {

namespace fs = std::filesystem;

namespace {

// Limits on what a file may claim, checked before memory is allocated for it.
constexpr hsize_t most_rows = 10'000'000;
constexpr std::size_t longest_row = std::size_t{1} << 20;
constexpr std::size_t largest_chunk = std::size_t{64} << 20;
constexpr std::size_t longest_text = std::size_t{64} << 20;
constexpr hsize_t largest_table = hsize_t{1} << 30;
// Rows are read and stored in blocks of about this size.
constexpr std::size_t block_size = std::size_t{1} << 18;
constexpr int most_fields = 256;

/// Owns one HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close_function) : id_(id), close_(close_function) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { (void)close(); }

  [[nodiscard]] hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// False when the library could not finish: for a file, data did not reach the disk.
  [[nodiscard]] bool close() { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// Settings of the library that hold for the whole process. The error stack is per thread, hence every time.
void quiet_library() {
  // A file that could not be closed (disk full) stays open inside the library, whose clean-up at exit then crashes.
  // This call must come before all others.
  static const herr_t no_clean_up_at_exit = H5dont_atexit();
  (void)no_clean_up_at_exit;
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  // A file must not make the library load plugins.
  H5PLset_loading_state(0);
}

/// The innermost reason on HDF5's error stack, for example "truncated file: eof = 96, ...".
std::string library_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
        auto& text = *static_cast<std::string*>(data);
        if (text.empty() && error->desc != nullptr) text = error->desc;
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  // Of "file write failed: time = ..., filename = ..., errno = 28, error message = 'No space left on device', buf =
  // ..." only the system's message is kept.
  constexpr std::string_view mark = "error message = '";
  if (const std::size_t begin = reason.find(mark); begin != std::string::npos)
    if (const std::size_t end = reason.find('\'', begin + mark.size()); end != std::string::npos)
      return reason.substr(begin + mark.size(), end - begin - mark.size());
  return reason.empty() ? "HDF5 gives no reason" : reason;
}

Handle file_access() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  // The format of 1.10 has checksums over all metadata; the default one has none.
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  // Files are complete when they get their name and never change, so locks (which NFS and Lustre may lack) are not
  // needed.
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  H5Pset_file_locking(access.get(), false, true);
#else
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
#endif
  return access;
}

Handle text_type(std::size_t length) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(length, 1));
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  return type;
}

/// The text in a fixed-length field, without its padding.
std::string_view text_in(const char* bytes, std::size_t length, bool space_padded) {
  if (!space_padded) return {bytes, ::strnlen(bytes, length)};
  while (length > 0 && bytes[length - 1] == ' ') --length;
  return {bytes, length};
}

std::size_t longest_cell(std::size_t rows, std::size_t column,
                         const std::function<Cell(std::size_t, std::size_t)>& cell) {
  std::size_t longest = 1;
  for (std::size_t row = 0; row < rows; ++row)
    longest = std::max(longest, std::get<std::string>(cell(row, column)).size());
  return longest;
}

}  // namespace

std::string_view FieldBlock::text(std::size_t row) const {
  return text_in(first_ + row * stride_, length_, space_padded_);
}

std::string cut_text(std::string text) {
  constexpr std::string_view mark = " [cut]";
  if (text.size() <= longest_text_field) return text;
  std::size_t end = longest_text_field - mark.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  text.resize(end);
  return text.append(mark);
}

// ---- Writing

struct FileWriter::State {
  std::string path;
  Handle file;

  [[nodiscard]] tl::unexpected<Error> failed(std::string_view what) const {
    return fail(ErrorCode::io, fmt::format("cannot write '{}': {}: {}", path, what, library_reason()));
  }
  Result<void> write_attribute(hid_t object, const std::string& name, hid_t type, hid_t space, const void* data) const {
    const Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (!attribute || H5Awrite(attribute.get(), type, data) < 0) return failed("attribute " + name);
    return {};
  }
  Result<void> write_units(hid_t dataset, const std::vector<ColumnInfo>& columns) const {
    std::size_t length = 1;
    for (const ColumnInfo& column : columns) length = std::max(length, column.name.size() + 1 + column.unit.size());
    std::string packed;
    for (const ColumnInfo& column : columns) {
      std::string entry = column.name + "=" + column.unit;
      entry.resize(length, '\0');
      packed += entry;
    }
    const hsize_t count = columns.size();
    const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    return write_attribute(dataset, "units", text_type(length).get(), space.get(), packed.data());
  }
};

FileWriter::FileWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

Result<FileWriter> FileWriter::create(const fs::path& path) {
  quiet_library();
  auto state = std::make_unique<State>();
  state->path = path.string();
  const Handle access = file_access();  // closing it clears the reason of a failure
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // of the root group: equal content gives equal bytes
  state->file = Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  if (!state->file) return state->failed("creating the file");
  return FileWriter(std::move(state));
}

Result<void> FileWriter::attribute(const std::string& name, std::int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(state_->file.get(), name.c_str(), H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute || H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) < 0) return state_->failed("attribute " + name);
  return {};
}

Result<void> FileWriter::attribute(const std::string& name, const std::string& value) {
  const std::string stored = cut_text(value);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  return state_->write_attribute(state_->file.get(), name, text_type(stored.size()).get(), space.get(), stored.c_str());
}

Result<void> FileWriter::table(const std::string& name, const std::vector<ColumnInfo>& columns, std::size_t rows,
                               const std::function<Cell(std::size_t, std::size_t)>& cell) {
  std::vector<std::size_t> offsets;
  std::vector<std::size_t> lengths;
  std::size_t row_size = 0;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    offsets.push_back(row_size);
    lengths.push_back(columns[column].type == ColumnType::text ? longest_cell(rows, column, cell) : 8);
    row_size += lengths.back();
  }
  if (row_size > longest_row || rows > most_rows || rows * row_size > largest_table)
    return fail(ErrorCode::io,
                fmt::format("cannot write '{}': table '{}' has {} rows of {} bytes; at most {} of {} bytes, "
                            "together {}, can be read",
                            state_->path, name, rows, row_size, most_rows, longest_row, largest_table));
  // The same layout twice: in the byte order of the file, and in that of this machine.
  const Handle file_type(H5Tcreate(H5T_COMPOUND, row_size), H5Tclose);
  const Handle memory_type(H5Tcreate(H5T_COMPOUND, row_size), H5Tclose);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Handle text = text_type(lengths[i]);
    const bool integer = columns[i].type == ColumnType::integer;
    const bool is_text = columns[i].type == ColumnType::text;
    const hid_t in_file = is_text ? text.get() : integer ? H5T_STD_I64LE : H5T_IEEE_F64LE;
    const hid_t in_memory = is_text ? text.get() : integer ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE;
    if (H5Tinsert(file_type.get(), columns[i].name.c_str(), offsets[i], in_file) < 0 ||
        H5Tinsert(memory_type.get(), columns[i].name.c_str(), offsets[i], in_memory) < 0)
      return state_->failed("field " + columns[i].name);
  }

  std::vector<char> packed(rows * row_size, '\0');
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t i = 0; i < columns.size(); ++i) {
      char* const place = packed.data() + row * row_size + offsets[i];
      const Cell value = cell(row, i);
      if (const auto* integer = std::get_if<std::int64_t>(&value))
        std::memcpy(place, integer, sizeof(*integer));
      else if (const auto* number = std::get_if<double>(&value))
        std::memcpy(place, number, sizeof(*number));
      else
        std::get<std::string>(value).copy(place, lengths[i]);
    }

  const hsize_t extent = rows;
  const Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // equal tables give equal bytes
  if (rows > 0) {
    const hsize_t chunk = std::min<hsize_t>(extent, std::max<hsize_t>(1, block_size / row_size));
    H5Pset_chunk(creation.get(), 1, &chunk);
    H5Pset_fletcher32(creation.get());
  }
  const Handle dataset(H5Dcreate2(state_->file.get(), name.c_str(), file_type.get(), space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       H5Dclose);
  if (!dataset) return state_->failed("dataset /" + name);
  if (rows > 0 && H5Dwrite(dataset.get(), memory_type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()) < 0)
    return state_->failed("rows of dataset /" + name);
  return state_->write_units(dataset.get(), columns);
}

Result<void> FileWriter::text(const std::string& name, const std::string& value) {
  if (value.size() > longest_text) return fail(ErrorCode::io, fmt::format("/{} has {} bytes", name, value.size()));
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle type = text_type(value.size());
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  const Handle dataset(
      H5Dcreate2(state_->file.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
      H5Dclose);
  if (!dataset || H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value.c_str()) < 0)
    return state_->failed("dataset /" + name);
  return state_->write_units(dataset.get(), {{name, ColumnType::text, "1"}});
}

Result<void> FileWriter::close() {
  if (H5Fflush(state_->file.get(), H5F_SCOPE_GLOBAL) < 0 || !state_->file.close())
    return state_->failed("closing the file");
  return {};
}

// ---- Reading

struct FileReader::State {
  std::string path;
  Handle file;
  std::uintmax_t file_size = 0;

  [[nodiscard]] tl::unexpected<Error> invalid(std::string what, std::string hint = {}) const {
    H5Eclear2(H5E_DEFAULT);
    return fail(ErrorCode::invalid_input, fmt::format("file '{}': {}", path, what), std::move(hint));
  }
  [[nodiscard]] tl::unexpected<Error> damaged(std::string_view what) const {
    std::string reason = library_reason();
    return invalid(fmt::format("{} cannot be read ({})", what, reason), "the file is damaged; measure again");
  }

  /// True if the file itself has a dataset of this name: no link to another file, no group.
  [[nodiscard]] bool is_dataset(const std::string& name) const {
    if (H5Lexists(file.get(), name.c_str(), H5P_DEFAULT) <= 0) return false;
    H5L_info_t link;
    if (H5Lget_info(file.get(), name.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return false;
    const Handle object(H5Oopen(file.get(), name.c_str(), H5P_DEFAULT), H5Oclose);
    return object && H5Iget_type(object.get()) == H5I_DATASET;
  }

  [[nodiscard]] Result<Handle> open_dataset(const std::string& name) const {
    if (!is_dataset(name)) return invalid(fmt::format("dataset '/{}' is missing", name));
    Handle dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset) return damaged(fmt::format("dataset '/{}'", name));
    return dataset;
  }

  /// The data must lie in this file, in chunks of sensible size, as bytes that were really written. Returns the rows of
  /// one chunk, 1 if there are no chunks.
  [[nodiscard]] Result<hsize_t> check_storage(const std::string& name, hid_t dataset, std::size_t row_size,
                                              hsize_t rows) const {
    const Handle creation(H5Dget_create_plist(dataset), H5Pclose);
    if (!creation) return damaged(fmt::format("dataset '/{}'", name));
    const H5D_layout_t layout = H5Pget_layout(creation.get());
    if (layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
      return invalid(fmt::format("dataset '/{}' has an unknown layout", name));
    if (H5Pget_external_count(creation.get()) != 0)
      return invalid(fmt::format("dataset '/{}' keeps its data in another file", name));
    bool compressed = false;
    const int filters = H5Pget_nfilters(creation.get());
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0;
      std::size_t values = 0;
      const H5Z_filter_t filter =
          H5Pget_filter2(creation.get(), static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, nullptr);
      if (filter == H5Z_FILTER_DEFLATE)
        compressed = true;
      else if (filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
        return invalid(fmt::format("dataset '/{}' uses filter {}", name, static_cast<int>(filter)));
    }
    hsize_t chunk = 1;
    if (layout == H5D_CHUNKED) {
      if (H5Pget_chunk(creation.get(), 1, &chunk) != 1 || chunk == 0 || chunk > largest_chunk / row_size)
        return invalid(fmt::format("dataset '/{}' has chunks of {} rows", name, chunk));
    }
    const std::uint64_t stored = H5Dget_storage_size(dataset);
    const std::uint64_t needed = rows * row_size / (compressed ? 1100 : 1);  // deflate reaches about 1030 : 1
    if (stored > file_size || stored < needed)
      return invalid(fmt::format("dataset '/{}' claims {} rows of {} bytes but {} bytes are stored", name, rows,
                                 row_size, stored));
    return chunk;
  }

  [[nodiscard]] Result<Handle> open_attribute(const std::string& name) const {
    if (H5Aexists(file.get(), name.c_str()) <= 0) return invalid(fmt::format("attribute '{}' is missing", name));
    Handle attribute(H5Aopen(file.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute) return damaged(fmt::format("attribute '{}'", name));
    const Handle space(H5Aget_space(attribute.get()), H5Sclose);
    if (!space || H5Sget_simple_extent_npoints(space.get()) != 1)
      return invalid(fmt::format("attribute '{}' is no single value", name));
    return attribute;
  }
};

FileReader::FileReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
FileReader::FileReader(FileReader&&) noexcept = default;
FileReader& FileReader::operator=(FileReader&&) noexcept = default;
FileReader::~FileReader() = default;

tl::unexpected<Error> FileReader::invalid(std::string what, std::string hint) const {
  return state_->invalid(std::move(what), std::move(hint));
}

Result<FileReader> FileReader::open(const fs::path& path) {
  quiet_library();
  auto state = std::make_unique<State>();
  state->path = path.string();
  // HDF5 would wait for the writer of a pipe, or for the kernel.
  const auto file = open_to_read(path);
  if (!file) return fail(file.error());
  std::error_code code;
  state->file_size = fs::file_size(path, code);
  if (code) return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", state->path, code.message()));
  std::array<char, 9> start{};
  if (::pread(file->get(), start.data(), start.size(), 0) < 0)
    return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", state->path, system_message(errno)));
  if (std::memcmp(start.data(), "\x89HDF\r\n\x1a\n", 8) != 0) return state->invalid("it is not an HDF5 file");
  // Superblocks of versions 0 and 1 mean metadata without checksums, and HDF5 1.10 reads beyond its buffers if such
  // metadata are damaged.
  if (start[8] == 0 || start[8] == 1)
    return state->invalid("its metadata have no checksums (file format of HDF5 before 1.8)",
                          "write it with the format of HDF5 1.10 (libver bounds, h5repack)");
  const Handle access = file_access();
  state->file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!state->file) {
    const std::string reason = library_reason();
    return state->invalid(fmt::format("it cannot be opened ({})", reason),
                          "the file is truncated, damaged or unreadable; measure again");
  }
  return FileReader(std::move(state));
}

Result<std::int64_t> FileReader::integer_attribute(const std::string& name) const {
  auto attribute = state_->open_attribute(name);
  if (!attribute) return fail(attribute.error());
  const Handle type(H5Aget_type(attribute->get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) > 8)
    return invalid(fmt::format("attribute '{}' is no integer", name));
  std::int64_t value = 0;
  if (H5Aread(attribute->get(), H5T_NATIVE_INT64, &value) < 0)
    return state_->damaged(fmt::format("attribute '{}'", name));
  return value;
}

Result<std::string> FileReader::text_attribute(const std::string& name) const {
  auto attribute = state_->open_attribute(name);
  if (!attribute) return fail(attribute.error());
  const Handle type(H5Aget_type(attribute->get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0)
    return invalid(fmt::format("attribute '{}' is no fixed-length string", name));
  const std::size_t length = H5Tget_size(type.get());
  if (length > longest_row) return invalid(fmt::format("attribute '{}' has {} bytes", name, length));
  std::string bytes(length, '\0');
  if (H5Aread(attribute->get(), type.get(), bytes.data()) < 0)
    return state_->damaged(fmt::format("attribute '{}'", name));
  return std::string(text_in(bytes.data(), length, H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD));
}

bool FileReader::has(const std::string& dataset) const { return state_->is_dataset(dataset); }

Result<void> FileReader::table(const std::string& name, const std::vector<ColumnInfo>& columns,
                               const ReadBlock& block) const {
  auto dataset = state_->open_dataset(name);
  if (!dataset) return fail(dataset.error());
  const Handle type(H5Dget_type(dataset->get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_COMPOUND)
    return invalid(fmt::format("dataset '/{}' is no table (compound type)", name));
  const std::size_t stored_row_size = H5Tget_size(type.get());
  const int members = H5Tget_nmembers(type.get());
  if (stored_row_size == 0 || stored_row_size > longest_row || members < 0 || members > most_fields)
    return invalid(fmt::format("dataset '/{}' has rows of {} bytes with {} fields", name, stored_row_size, members));

  // Numbers are converted by the library to one size; text is not converted.
  struct Field {
    Handle type;
    std::size_t offset = 0;
    std::size_t length = 8;
    bool space_padded = false;
  };
  std::vector<Field> fields;
  std::size_t row_size = 0;
  for (const ColumnInfo& column : columns) {
    const int index = H5Tget_member_index(type.get(), column.name.c_str());
    if (index < 0 && column.may_be_missing) {
      fields.push_back({.type = {}, .offset = row_size, .length = 0});
      continue;
    }
    if (index < 0) return invalid(fmt::format("dataset '/{}' has no field '{}'", name, column.name));
    Field field;
    field.offset = row_size;
    field.type = Handle(H5Tget_member_type(type.get(), static_cast<unsigned>(index)), H5Tclose);
    if (!field.type) return state_->damaged(fmt::format("field '{}' of dataset '/{}'", column.name, name));
    const H5T_class_t kind = H5Tget_class(field.type.get());
    const std::size_t size = H5Tget_size(field.type.get());
    auto wrong_type = [&](std::string_view wanted) {
      return invalid(fmt::format("field '{}' of dataset '/{}' is no {}", column.name, name, wanted));
    };
    switch (column.type) {
      case ColumnType::text:
        if (kind != H5T_STRING || H5Tis_variable_str(field.type.get()) != 0 || size == 0 || size > longest_row)
          return wrong_type("fixed-length string");
        field.length = size;
        field.space_padded = H5Tget_strpad(field.type.get()) == H5T_STR_SPACEPAD;
        break;
      case ColumnType::integer:
        if (kind != H5T_INTEGER || size > 8) return wrong_type("integer");
        field.type = Handle(H5Tcopy(H5T_NATIVE_INT64), H5Tclose);
        break;
      case ColumnType::number:
        if ((kind != H5T_FLOAT && kind != H5T_INTEGER) || size > 16) return wrong_type("number");
        field.type = Handle(H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose);
        break;
    }
    row_size += field.length;
    fields.push_back(std::move(field));
  }
  const Handle memory_type(H5Tcreate(H5T_COMPOUND, row_size), H5Tclose);
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (fields[i].type &&
        H5Tinsert(memory_type.get(), columns[i].name.c_str(), fields[i].offset, fields[i].type.get()) < 0)
      return state_->damaged(fmt::format("field '{}' of dataset '/{}'", columns[i].name, name));

  const Handle space(H5Dget_space(dataset->get()), H5Sclose);
  hsize_t rows = 0;
  if (!space || H5Sget_simple_extent_type(space.get()) != H5S_SIMPLE || H5Sget_simple_extent_ndims(space.get()) != 1 ||
      H5Sget_simple_extent_dims(space.get(), &rows, nullptr) != 1)
    return invalid(fmt::format("dataset '/{}' is not one-dimensional", name));
  if (rows > most_rows)
    return invalid(fmt::format("dataset '/{}' claims {} rows; the limit is {}", name, rows, most_rows));
  if (rows * std::max(row_size, stored_row_size) > largest_table)
    return invalid(fmt::format("dataset '/{}' claims {} rows of {} bytes", name, rows, stored_row_size));
  auto chunk = state_->check_storage(name, dataset->get(), stored_row_size, rows);
  if (!chunk) return fail(chunk.error());

  // Reads whole chunks, so that none is read and checked twice.
  const hsize_t wanted = std::max<hsize_t>(1, block_size / std::max(row_size, stored_row_size));
  const hsize_t at_once = std::min(rows, (wanted + *chunk - 1) / *chunk * *chunk);
  std::vector<char> buffer(at_once * row_size);
  for (hsize_t first = 0; first < rows; first += at_once) {
    const hsize_t count = std::min(at_once, rows - first);
    const Handle window(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (!window || H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr) < 0 ||
        H5Dread(dataset->get(), memory_type.get(), window.get(), space.get(), H5P_DEFAULT, buffer.data()) < 0)
      return state_->damaged(fmt::format("dataset '/{}'", name));
    std::optional<BlockProblem> earliest;
    std::size_t column = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!fields[i].type) continue;
      const FieldBlock values(buffer.data() + fields[i].offset, row_size, fields[i].length, fields[i].space_padded);
      auto problem = block(first, count, i, values);
      if (!problem || (earliest && earliest->row <= problem->row)) continue;
      earliest = std::move(problem);
      column = i;
    }
    if (earliest)
      return invalid(fmt::format("dataset '/{}', row {}, field '{}': {}", name, first + earliest->row,
                                 columns[column].name, earliest->what));
  }
  return {};
}

Result<std::string> FileReader::text(const std::string& name) const {
  auto dataset = state_->open_dataset(name);
  if (!dataset) return fail(dataset.error());
  const Handle type(H5Dget_type(dataset->get()), H5Tclose);
  const Handle space(H5Dget_space(dataset->get()), H5Sclose);
  if (!type || !space || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1)
    return invalid(fmt::format("dataset '/{}' is no fixed-length string", name));
  const std::size_t length = H5Tget_size(type.get());
  if (length > longest_text) return invalid(fmt::format("dataset '/{}' has {} bytes", name, length));
  SAILOR_CHECK(state_->check_storage(name, dataset->get(), length, 1));
  std::string bytes(length, '\0');
  if (H5Dread(dataset->get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
    return state_->damaged(fmt::format("dataset '/{}'", name));
  return std::string(text_in(bytes.data(), length, H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD));
}

}  // namespace sailor::hdf5
