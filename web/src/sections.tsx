// Sections of a study: text, table, curves and drawings.
import type { Section } from "./api";
import { Card, Rows } from "./parts";

export function Sections({ sections }: { sections: Section[] }) {
  return <>{sections.map((section, at) => (
    <Card key={at} title={section.title}>
      {section.text && <p class="text">{section.text}</p>}
      {section.columns.length > 0 && <Rows table={section} label={section.title} />}
    </Card>
  ))}</>;
}
