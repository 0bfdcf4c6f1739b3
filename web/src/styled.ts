/** A ref that sets styles through the element: the page's policy forbids style attributes. */
export const styled =
  (style: Partial<CSSStyleDeclaration>) =>
  (element: HTMLElement | null): void => {
    if (element) Object.assign(element.style, style);
  };
