// topology.yaml, read with libyaml as slurmctld does.
#include <fmt/format.h>
#include <yaml.h>

#include <string>
#include <vector>

#include "cluster/host_list.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/topology.hpp"

namespace sailor::slurm {

namespace {

/// A document in memory.
class Document {
 public:
  Document() { yaml_parser_initialize(&parser_); }
  ~Document() {
    if (loaded_) yaml_document_delete(&document_);
    yaml_parser_delete(&parser_);
  }
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  Result<void> load(std::string_view text) {
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    loaded_ = yaml_parser_load(&parser_, &document_) != 0;
    if (loaded_) return {};
    return fail(ErrorCode::invalid_input, fmt::format("topology.yaml:{}: {}", parser_.problem_mark.line + 1,
                                                      parser_.problem == nullptr ? "no YAML" : parser_.problem));
  }

  yaml_node_t* root() { return yaml_document_get_root_node(&document_); }
  /// The values of a list; any other node as a list of one.
  std::vector<yaml_node_t*> items(yaml_node_t* node) {
    if (node == nullptr) return {};
    if (node->type != YAML_SEQUENCE_NODE) return {node};
    std::vector<yaml_node_t*> all;
    for (const yaml_node_item_t* item = node->data.sequence.items.start; item < node->data.sequence.items.top; ++item)
      all.push_back(yaml_document_get_node(&document_, *item));
    return all;
  }
  /// The value of a key of a mapping; null if there is none.
  yaml_node_t* value(yaml_node_t* node, std::string_view key) {
    if (node == nullptr || node->type != YAML_MAPPING_NODE) return nullptr;
    for (const yaml_node_pair_t* pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; ++pair)
      if (equal_ignoring_case(text(yaml_document_get_node(&document_, pair->key)), key))
        return yaml_document_get_node(&document_, pair->value);
    return nullptr;
  }
  static std::string text(const yaml_node_t* node) {
    if (node == nullptr || node->type != YAML_SCALAR_NODE) return {};
    return {reinterpret_cast<const char*>(node->data.scalar.value), node->data.scalar.length};
  }

 private:
  yaml_parser_t parser_{};
  yaml_document_t document_{};
  bool loaded_ = false;
};

bool is_true(const std::string& word) {
  return equal_ignoring_case(word, "true") || equal_ignoring_case(word, "yes") || word == "1";
}

/// Adds the nodes of switches or blocks.
Result<void> add_leaves(Document& document, yaml_node_t* list, std::string_view name_key, Topology& topology) {
  for (yaml_node_t* entry : document.items(list)) {
    const std::string name = Document::text(document.value(entry, name_key));
    const std::string nodes = Document::text(document.value(entry, "nodes"));
    if (name.empty() || nodes.empty()) continue;
    auto names = expand_host_list(nodes);
    if (!names) return fail(names.error(), fmt::format("topology.yaml: {} {}", name_key, printable(name)));
    for (std::string& node : *names) topology.leaf_of_node.emplace(std::move(node), name);
  }
  return {};
}

}  // namespace

Result<Topology> parse_topology_yaml(std::string_view text, std::string_view name) {
  Document document;
  SAILOR_CHECK(document.load(text));
  yaml_node_t* chosen = nullptr;
  bool by_name = false;
  bool by_default = false;
  for (yaml_node_t* entry : document.items(document.root())) {
    const bool named = !name.empty() && Document::text(document.value(entry, "topology")) == name;
    const bool usual = is_true(Document::text(document.value(entry, "cluster_default")));
    if (chosen != nullptr && !(named && !by_name) && !(usual && !by_default && !by_name)) continue;
    chosen = entry;
    by_name = named;
    by_default = usual;
  }
  Topology topology;
  if (yaml_node_t* tree = document.value(chosen, "tree")) {
    topology.kind = TopologyKind::tree;
    SAILOR_CHECK(add_leaves(document, document.value(tree, "switches"), "switch", topology));
  } else if (yaml_node_t* block = document.value(chosen, "block")) {
    topology.kind = TopologyKind::block;
    SAILOR_CHECK(add_leaves(document, document.value(block, "blocks"), "block", topology));
  }
  return topology;
}

}  // namespace sailor::slurm
