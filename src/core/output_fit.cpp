#include "core/output_fit.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/text.hpp"

namespace sailor {

namespace {

constexpr std::size_t least_columns = 20;  // narrower terminals break lines themselves

OutputFit& fit_of_process() {
  static OutputFit fit;
  return fit;
}

/// Of the lines that continue this one: below its second part, which two spaces or more divide from the first, where
/// that is in the left half; else two columns more than its own.
std::string indent_of(std::string_view line, std::size_t columns) {
  const std::size_t own = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", own);
  const std::size_t second = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  if (second != std::string_view::npos && text_width(line.substr(0, second)) < columns / 2)
    return std::string(text_width(line.substr(0, second)), ' ');
  return std::string(own + 2, ' ');
}

}  // namespace

void fit_output(OutputFit fit) {
  if (fit.columns > 0) fit.columns = std::max(fit.columns, least_columns);
  fit_of_process() = std::move(fit);
}

const OutputFit& output_fit() { return fit_of_process(); }

std::optional<std::size_t> terminal_width(int descriptor) {
  winsize size{};
  if (::isatty(descriptor) == 0 || ::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

std::size_t text_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string_view first_columns(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  while (end < text.size() && text_width(text.substr(0, end + 1)) <= columns) ++end;
  return text.substr(0, end);
}

std::vector<std::string> wrap(std::string_view text, std::size_t columns, LongWords long_words,
                              std::string_view indent) {
  std::vector<std::string> lines;
  std::string begin;
  while (begin.size() + text_width(text) > columns) {
    std::string_view line = first_columns(text, columns - begin.size());
    const std::size_t word = line.find_first_not_of(' ');
    const std::size_t space = text[line.size()] == ' ' ? line.size() : line.find_last_of(' ');
    if (space != std::string_view::npos && word < space)
      line = line.substr(0, space);
    else if (long_words == LongWords::whole)
      line = text.substr(0, text.find(' ', std::min(word, text.size())));
    text.remove_prefix(line.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    lines.push_back(begin + std::string(line.substr(0, line.find_last_not_of(' ') + 1)));
    begin = indent;
  }
  if (lines.empty() || !text.empty()) lines.push_back(begin + std::string(text));
  return lines;
}

std::string fitted(std::string_view text) {
  const std::size_t columns = fit_of_process().columns;
  if (columns == 0) return std::string(text);
  std::string all;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    all += join(wrap(line, columns, LongWords::whole, indent_of(line, columns)), "\n");
    if (end < text.size()) all += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

}  // namespace sailor
